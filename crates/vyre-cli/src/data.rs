//! Data files: reads and writes npy and raw files, writes png images.
//!
//! Objects, npy files and raw files all hold contiguous little-endian elements, so data are checked but never converted.

use std::io::{self, Write};
use std::path::Path;

use npyz::{DType, Endianness, NpyHeader, Order, TypeChar, WriteOptions, WriterBuilder as _};
use vyre_driver::read_limited;
use vyre_foundation::ir::{Element, Memory, Space};

use crate::error::Error;

/// File format, by the extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Array of `numpy.save`.
    Npy,
    /// Raw little-endian elements.
    Raw,
    /// An image.
    Png,
}

impl Format {
    pub(crate) fn of(path: &Path) -> Option<Format> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "npy" => Some(Format::Npy),
            "bin" => Some(Format::Raw),
            "png" => Some(Format::Png),
            _ => None,
        }
    }
}

/// Reads the contents of an object. `bind` checks the length of storage objects.
pub(crate) fn read(path: &Path, memory: &Memory) -> Result<Vec<u8>, Error> {
    let uniform = memory.space == Space::Uniform;
    let element = memory.element;
    let most = if uniform { 1 } else { u64::from(u32::MAX) } * element.size() as u64;
    let misfit = |bytes: u64| match uniform {
        true => Error::NotScalar { path: path.into(), name: memory.name.clone(), element },
        false => vyre_foundation::Error::TooLarge { elements: bytes / element.size() as u64, element }.into(),
    };
    let contents = match Format::of(path) {
        Some(Format::Raw) => read_at_most(path, most)?.map_err(misfit)?,
        Some(Format::Npy) => {
            let file = read_at_most(path, most + MAX_NPY_HEADER as u64)?.map_err(misfit)?;
            decode_npy(path, file, memory)?
        }
        Some(Format::Png) | None => return Err(Error::Format { path: path.into(), reading: true }),
    };
    if uniform && contents.len() as u64 != most {
        return Err(misfit(contents.len() as u64));
    }
    Ok(contents)
}

/// Reads a file of at most `limit` bytes. Returns the length of a longer one as an inner error.
fn read_at_most(path: &Path, limit: u64) -> Result<Result<Vec<u8>, u64>, Error> {
    let unreadable = |error: io::Error| Error::Read { path: path.into(), error };
    // Checked before opening, because opening a device file can have side effects.
    let kind = std::fs::metadata(path).map_err(unreadable)?.file_type();
    if !kind.is_file() && !is_pipe(kind) {
        return Err(unreadable(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a file nor a pipe")));
    }
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len();
    if length > limit {
        return Ok(Err(length));
    }
    expect_memory(length)?;
    // A pipe has no length, so available memory is the limit.
    let most = available_memory().map_or(limit, |available| limit.min(available / COPIES));
    let bytes = read_limited(file, most + 1, length as usize, |_, _| ()).map_err(unreadable)?;
    let read = bytes.len() as u64;
    if read > limit {
        return Ok(Err(read));
    }
    if read > most {
        let (requested, available) = (read.saturating_mul(COPIES), most.saturating_mul(COPIES));
        return Err(vyre_driver::Error::OutOfMemory { requested, available }.into());
    }
    Ok(Ok(bytes))
}

#[cfg(unix)]
fn is_pipe(kind: std::fs::FileType) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&kind)
}

#[cfg(not(unix))]
fn is_pipe(_: std::fs::FileType) -> bool {
    false
}

/// Copies of the data that a run holds in host memory: one for the host, one for a device that uses host memory.
const COPIES: u64 = 2;

/// Refuses data that exceed the available memory, because an overcommitting system would kill the process.
///
/// # Errors
/// [`vyre_driver::Error::OutOfMemory`]
pub(crate) fn expect_memory(bytes: u64) -> Result<(), Error> {
    let requested = bytes.saturating_mul(COPIES);
    match available_memory() {
        Some(available) if requested > available => {
            Err(vyre_driver::Error::OutOfMemory { requested, available }.into())
        }
        _ => Ok(()),
    }
}

/// Bytes that can be allocated without swapping, if known.
fn available_memory() -> Option<u64> {
    let information = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = information.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes.saturating_mul(1024))
}

// Arrays.

/// Maximum length of a header, including the magic number and length. The header of a plain array has 128 bytes.
const MAX_NPY_HEADER: usize = 4096;
/// Maximum nesting depth in a header. The header of a plain array has two levels.
const MAX_NPY_DEPTH: usize = 16;

/// Returns the elements of an npy file if type, order and shape fit the object.
fn decode_npy(path: &Path, file: Vec<u8>, memory: &Memory) -> Result<Vec<u8>, Error> {
    let invalid = |reason: String| Error::Npy { path: path.into(), reason };
    let data = plausible_npy_header(&file).map_err(|reason| invalid(reason.into()))?;
    let header = NpyHeader::from_reader(&file[..data]).map_err(|error| invalid(error.to_string()))?;

    let needed = npy_type(memory.element);
    let matches = match header.dtype() {
        DType::Plain(found) => {
            let (type_char, size) = (found.type_char(), found.size_field());
            let little = size == 1 || found.endianness() == Endianness::Little;
            little && size == memory.element.size() as u64 && type_char == npy_kind(memory.element)
        }
        DType::Array(..) | DType::Record(_) => false,
    };
    if !matches {
        let (path, name) = (path.into(), memory.name.clone());
        return Err(Error::NpyType { path, found: header.dtype().descr(), name, needed, element: memory.element });
    }
    if header.order() == Order::Fortran {
        return Err(Error::NpyOrder { path: path.into() });
    }
    let described = header.shape().iter().try_fold(memory.element.size() as u64, |sum, &size| sum.checked_mul(size));
    let found = (file.len() - data) as u64;
    match described {
        Some(described) if described == found => {
            let mut contents = file;
            contents.drain(..data);
            Ok(contents)
        }
        described => Err(Error::NpyLength { path: path.into(), described: described.unwrap_or(u64::MAX), found }),
    }
}

/// Returns the offset of the data of an npy file, after sanity checks of the header.
///
/// `npyz` parses brackets recursively and multiplies sizes unchecked. Headers that would overflow the stack or an integer are rejected
/// here, by nesting depth and by the product of all numbers.
fn plausible_npy_header(file: &[u8]) -> Result<usize, &'static str> {
    let cut_off = "the header is truncated";
    if !file.starts_with(b"\x93NUMPY") {
        return Err("it does not start with the npy magic number");
    }
    let (text, length) = match *file.get(6..12).ok_or(cut_off)? {
        [1, _, a, b, ..] => (10, usize::from(u16::from_le_bytes([a, b]))),
        [_, _, a, b, c, d] => (12, u32::from_le_bytes([a, b, c, d]) as usize),
        _ => return Err(cut_off),
    };
    if length > MAX_NPY_HEADER - text {
        return Err("the header is longer than 4096 bytes");
    }
    let header = file.get(text..text + length).ok_or(cut_off)?;
    let mut depth = 0usize;
    let mut product = 1u64;
    for token in header.chunk_by(|a, b| is_word(*a) && is_word(*b)) {
        match token {
            [b'(' | b'[' | b'{', ..] => depth += 1,
            [b')' | b']' | b'}', ..] => depth = depth.saturating_sub(1),
            [b'0'..=b'9', ..] => {
                let number = std::str::from_utf8(token).ok().and_then(|digits| digits.parse::<u64>().ok());
                let number = number.ok_or("a number in the header does not fit into 64 bits")?;
                product = product.checked_mul(number.max(1)).ok_or("the size of its shape overflows 64 bits")?;
            }
            _ => {}
        }
        if depth > MAX_NPY_DEPTH {
            return Err("the header is nested more than 16 levels deep");
        }
    }
    Ok(text + length)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Type descriptor of elements in npy headers.
fn npy_type(element: Element) -> &'static str {
    match element {
        Element::I8 => "|i1",
        Element::U8 => "|u1",
        Element::I16 => "<i2",
        // npy has no bf16: arrays of the bits.
        Element::U16 | Element::BF16 => "<u2",
        Element::I32 => "<i4",
        Element::U32 => "<u4",
        Element::F32 => "<f4",
        Element::I64 => "<i8",
        Element::U64 => "<u8",
        Element::F64 => "<f8",
        Element::F16 => "<f2",
    }
}

fn npy_kind(element: Element) -> TypeChar {
    match element {
        Element::I8 | Element::I16 | Element::I32 | Element::I64 => TypeChar::Int,
        Element::U8 | Element::U16 | Element::U32 | Element::U64 | Element::BF16 => TypeChar::Uint,
        Element::F32 | Element::F64 | Element::F16 => TypeChar::Float,
    }
}

/// Encoding of an object in a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Encoding {
    Npy { shape: Vec<u64> },
    Raw { length: u64 },
    Png { width: u32, height: u32, pixels: Pixels },
}

/// Pixel format of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pixels {
    /// One u8 per pixel.
    Grey,
    /// Three u8 per pixel.
    Rgb,
    /// Four u8 per pixel, or a u32 with red in the lowest byte, which has the same bytes.
    Rgba,
    /// One f32 per pixel, from 0 (black) to 1 (white).
    Light,
}

impl Encoding {
    /// Plans the encoding of `length` elements in a format. Arrays and images take their shape from `launched`, the elements of the grid.
    pub(crate) fn plan(
        format: Format,
        name: &str,
        element: Element,
        length: u64,
        launched: [u32; 3],
    ) -> Result<Encoding, Error> {
        match format {
            Format::Raw => Ok(Encoding::Raw { length }),
            Format::Npy => Ok(Encoding::Npy { shape: shape(length, launched) }),
            Format::Png => {
                let [width, height, _] = launched;
                let count = u64::from(width) * u64::from(height);
                let fits = |channels: u64| count > 0 && count.checked_mul(channels) == Some(length);
                let pixels = match element {
                    Element::U8 if fits(1) => Pixels::Grey,
                    Element::U8 if fits(3) => Pixels::Rgb,
                    Element::U8 if fits(4) => Pixels::Rgba,
                    Element::U32 if fits(1) => Pixels::Rgba,
                    Element::F32 if fits(1) => Pixels::Light,
                    _ => return Err(Error::NotAnImage { name: name.into(), element, length, width, height }),
                };
                Ok(Encoding::Png { width, height, pixels })
            }
        }
    }

    /// Size of an image, or type and shape of an array: `1024 × 1024`, `f32 [4, 8]`.
    pub(crate) fn shape(&self, element: Element) -> String {
        match self {
            Encoding::Npy { shape } => format!("{element} {shape:?}"),
            Encoding::Raw { length } => format!("{element} [{length}]"),
            Encoding::Png { width, height, .. } => format!("{width} × {height}"),
        }
    }

    /// Writes the contents of an object.
    pub(crate) fn write(&self, element: Element, contents: &[u8], file: impl Write) -> io::Result<()> {
        match self {
            Encoding::Raw { .. } => write_raw(contents, file),
            Encoding::Npy { shape } => {
                let dtype = npy_type(element).parse().expect("a type of numpy");
                let header = WriteOptions::new_header_only().dtype(DType::new_scalar(dtype)).shape(shape);
                write_raw(contents, header.writer(file).write_header_only()?)
            }
            Encoding::Png { width, height, pixels } => {
                let mut encoder = png::Encoder::new(file, *width, *height);
                encoder.set_depth(png::BitDepth::Eight);
                encoder.set_color(match pixels {
                    Pixels::Grey | Pixels::Light => png::ColorType::Grayscale,
                    Pixels::Rgb => png::ColorType::Rgb,
                    Pixels::Rgba => png::ColorType::Rgba,
                });
                let mut writer = encoder.write_header()?;
                match pixels {
                    Pixels::Grey | Pixels::Rgb | Pixels::Rgba => writer.write_image_data(contents)?,
                    Pixels::Light => writer.write_image_data(&grey(contents))?,
                }
                Ok(writer.finish()?)
            }
        }
    }
}

fn write_raw(contents: &[u8], mut file: impl Write) -> io::Result<()> {
    file.write_all(contents)?;
    file.flush()
}

/// Shape of the grid, fastest dimension last, if it has `length` elements; otherwise one dimension.
fn shape(length: u64, launched: [u32; 3]) -> Vec<u64> {
    let [x, y, z] = launched.map(u64::from);
    let count = x.checked_mul(y).and_then(|count| count.checked_mul(z));
    match (y, z) {
        _ if count != Some(length) => vec![length],
        (1, 1) => vec![x],
        (_, 1) => vec![y, x],
        _ => vec![z, y, x],
    }
}

/// Converts f32 from 0 to 1 to shades of grey; NaN is black.
fn grey(contents: &[u8]) -> Vec<u8> {
    let values = contents.chunks_exact(4).map(|bytes| f32::from_bits(Element::F32.read(bytes) as u32));
    values.map(|value| (value.clamp(0.0, 1.0) * 255.0).round() as u8).collect()
}
