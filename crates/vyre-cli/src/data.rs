//! Files of data: npy and raw bytes are read and written, png images are written.
//!
//! The bytes of an object are little-endian elements one after the other, which is what npy and raw files hold too: data is
//! never converted, only checked.

use std::io::{self, Write};
use std::path::Path;

use npyz::{DType, Endianness, NpyHeader, Order, TypeChar, WriteOptions, WriterBuilder as _};
use vyre_driver::read_limited;
use vyre_foundation::ir::{Element, Memory, Space};

use crate::error::Error;

/// What a file is, by the end of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// An array, as numpy saves it.
    Npy,
    /// Little-endian elements and nothing else.
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

/// Reads the contents for an object. How many elements a storage object may have is left to `bind`.
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

/// The contents of a file, or else its length, if that is more than `limit`.
fn read_at_most(path: &Path, limit: u64) -> Result<Result<Vec<u8>, u64>, Error> {
    let unreadable = |error: io::Error| Error::Read { path: path.into(), error };
    // Before it is opened, which already means something to some devices.
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
    // A pipe has no length, and need not end before memory does.
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

/// Copies that a run makes of its data: for the host, and for a device in the memory of the host.
const COPIES: u64 = 2;

/// Refuses data that the machine has no memory for. Systems that promise more memory than they have end processes that use it.
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

/// Bytes that can be allocated without swapping, where that is known.
fn available_memory() -> Option<u64> {
    let information = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = information.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes.saturating_mul(1024))
}

// Arrays.

/// The longest header that is read, with what comes before its text. That of a plain array has 128 bytes.
const MAX_NPY_HEADER: usize = 4096;
/// The deepest nesting in a header that is read. That of a plain array has two levels.
const MAX_NPY_DEPTH: usize = 16;

/// The elements of an npy file, if they are what an object needs.
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

/// Where the data of an npy file begins.
///
/// `npyz` parses brackets recursively and multiplies sizes without looking, so headers that would make it overflow the
/// stack or an integer are rejected here: brackets are counted, and the product of all numbers must fit.
fn plausible_npy_header(file: &[u8]) -> Result<usize, &'static str> {
    let cut_off = "it ends within its header";
    if !file.starts_with(b"\x93NUMPY") {
        return Err("it does not begin as one");
    }
    let (text, length) = match *file.get(6..12).ok_or(cut_off)? {
        [1, _, a, b, ..] => (10, usize::from(u16::from_le_bytes([a, b]))),
        [_, _, a, b, c, d] => (12, u32::from_le_bytes([a, b, c, d]) as usize),
        _ => return Err(cut_off),
    };
    if length > MAX_NPY_HEADER - text {
        return Err("its header is too long");
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
                let number = number.ok_or("its header has a number that cannot be read")?;
                product = product.checked_mul(number.max(1)).ok_or("its shape is larger than any memory")?;
            }
            _ => {}
        }
        if depth > MAX_NPY_DEPTH {
            return Err("its header is nested too deeply");
        }
    }
    Ok(text + length)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The type of elements, as npy files spell it.
fn npy_type(element: Element) -> &'static str {
    match element {
        Element::I8 => "|i1",
        Element::U8 => "|u1",
        Element::I16 => "<i2",
        Element::U16 => "<u2",
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
        Element::U8 | Element::U16 | Element::U32 | Element::U64 => TypeChar::Uint,
        Element::F32 | Element::F64 | Element::F16 => TypeChar::Float,
    }
}

/// How an object is written to a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Encoding {
    Npy { shape: Vec<u64> },
    Raw { length: u64 },
    Png { width: u32, height: u32, pixels: Pixels },
}

/// How the elements of an object make pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pixels {
    /// A u8 each.
    Grey,
    /// Three u8 each.
    Rgb,
    /// Four u8 each, or a u32 with red in the lowest byte: the bytes are the same.
    Rgba,
    /// An f32 each, black to white from 0 to 1.
    Light,
}

impl Encoding {
    /// How `length` elements can be written in a format. `launched` are the elements of the grid: arrays and images take
    /// their shape from it.
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

/// That of the grid, the fastest dimension last, where it has as many elements.
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

/// Shades of grey for f32 from 0 to 1; NaN is black.
fn grey(contents: &[u8]) -> Vec<u8> {
    let values = contents.chunks_exact(4).map(|bytes| f32::from_bits(Element::F32.read(bytes) as u32));
    values.map(|value| (value.clamp(0.0, 1.0) * 255.0).round() as u8).collect()
}
