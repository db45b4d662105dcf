//! `cargo xtask emulate avx512`: runs the conformance suite of the CPU backend on an AVX-512 processor emulated by
//! Bochs. A Linux kernel boots from a CD image, and its first process runs the tests and powers the machine off.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::test::{cargo, passes, quiet};
use crate::{root, target_dir};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Debian packages: an installed file, and the package name. The kernel is only unpacked.
const PACKAGES: &[(&str, &str)] = &[
    ("/usr/bin/bochs", "bochs"),
    ("/usr/share/bochs/BIOS-bochs-latest", "bochsbios"),
    ("/usr/lib/ISOLINUX/isolinux.bin", "isolinux"),
    ("/usr/lib/syslinux/modules/bios/ldlinux.c32", "syslinux-common"),
    ("/usr/bin/xorriso", "xorriso"),
    ("/usr/bin/cpio", "cpio"),
    ("/bin/busybox", "busybox-static"),
];
const KERNEL: &str = "linux-image-cloud-amd64";

/// Machines and their tests. The operations take as long as the rest.
const MACHINES: [(&str, &str); 2] = [("operations", "avx512::operations"), ("rest", "avx512:: --skip operations")];

/// Options of the Linux kernel. `clocksource` and `clearcpuid` are workarounds: the emulated processor reports too high a
/// clock rate, and a register state layout (XSAVE) that the kernel rejects.
const KERNEL_OPTIONS: &str =
    "console=ttyS0 quiet loglevel=1 clocksource=acpi_pm clearcpuid=xsavec,xsaves,pku mitigations=off nosmp nokaslr";

/// Runs the suite with a number of generated programs; returns whether it passed.
pub(crate) fn run(programs: u32) -> bool {
    match emulate(programs) {
        Ok(passed) => passed,
        Err(error) => {
            eprintln!("error: {error}");
            false
        }
    }
}

fn emulate(programs: u32) -> Result<bool, String> {
    let folder = target_dir().join("emulate");
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    install()?;
    let kernel = kernel(&folder)?;
    let tests = build()?;
    let mut machines = Vec::new();
    for (name, arguments) in MACHINES {
        let folder = folder.join(name);
        let _ = fs::remove_dir_all(&folder);
        write_image(&folder, &kernel, &tests, arguments, programs).map_err(|error| error.to_string())?;
        machines.push((folder.join("output.txt"), start(&folder)?));
        println!("{name}: {}", folder.join("output.txt").display());
    }
    let mut passed = true;
    for (output, mut machine) in machines {
        machine.wait().map_err(|error| error.to_string())?;
        let output = fs::read_to_string(&output).map_err(|error| error.to_string())?;
        println!("{output}");
        // Tests on a machine without AVX-512 would pass with another execution mode, which they print.
        passed &= output.contains("executed by Avx512")
            && !output.contains("executed by Avx2")
            && output.contains("\npassed");
    }
    Ok(passed)
}

fn install() -> Result<(), String> {
    let missing = || PACKAGES.iter().filter(|(file, _)| !Path::new(file).exists()).map(|(_, name)| *name);
    if missing().next().is_none() {
        return Ok(());
    }
    // Installing requires root; otherwise the command is printed.
    let apt = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    let _ =
        passes(apt().arg("update")) && passes(apt().args(["install", "-y", "--no-install-recommends"]).args(missing()));
    let still: Vec<&str> = missing().collect();
    if still.is_empty() { Ok(()) } else { Err(format!("Debian: sudo apt-get install {}", still.join(" "))) }
}

/// Downloads and unpacks a kernel, once.
fn kernel(folder: &Path) -> Result<PathBuf, String> {
    let found = || {
        let entries = fs::read_dir(folder.join("kernel/boot")).ok()?;
        entries.flatten().map(|entry| entry.path()).find(|path| path.to_string_lossy().contains("vmlinuz"))
    };
    if let Some(kernel) = found() {
        return Ok(kernel);
    }
    // The named package only depends on the actual one.
    let script = format!(
        "set -e; rm -f linux-image-*.deb; name=$(apt-cache depends {KERNEL} | sed -n 's/.*Depends: \\(linux-image-.*\\)/\\1/p')
        apt-get download $name; dpkg-deb -x linux-image-*.deb kernel"
    );
    passes(Command::new("sh").args(["-c", &script]).current_dir(folder));
    found().ok_or_else(|| format!("there is no kernel in Debian's {KERNEL}"))
}

/// Builds the tests as a static executable.
fn build() -> Result<PathBuf, String> {
    let mut build = cargo("test");
    build.args([
        "--locked",
        "--package",
        "vyre-cpu",
        "--test",
        "conformance",
        "--no-run",
        "--release",
        "--target",
        TARGET,
    ]);
    build.arg("--message-format=json").env("CARGO_PROFILE_RELEASE_STRIP", "symbols").stderr(Stdio::inherit());
    build.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-C target-feature=+crt-static");
    let output = build.output().map_err(|error| error.to_string())?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let path = messages.split("\"executable\":\"").nth(1).and_then(|rest| rest.split('"').next());
    path.filter(|_| output.status.success()).map(PathBuf::from).ok_or_else(|| "the tests do not build".into())
}

/// Writes the boot image and the configuration of a machine.
fn write_image(folder: &Path, kernel: &Path, tests: &Path, arguments: &str, programs: u32) -> std::io::Result<()> {
    let (disk, files) = (folder.join("disk"), folder.join("files"));
    fs::create_dir_all(&disk)?;
    for name in ["proc", "dev", "bin", "tmp"] {
        fs::create_dir_all(files.join(name))?;
    }
    fs::copy("/bin/busybox", files.join("bin/busybox"))?;
    fs::copy(tests, files.join("bin/conformance"))?;
    // The tests look for files at their build paths.
    for name in ["tests/files", "examples/kernels", "crates/vyre-testkit"] {
        let from = root().join(name);
        let to = files.join(from.strip_prefix("/").unwrap_or(&from));
        fs::create_dir_all(&to)?;
        quiet(Command::new("cp").arg("-r").arg(from.join(".")).arg(to));
    }
    let init = format!(
        "#!/bin/busybox sh
        /bin/busybox mount -t proc proc /proc
        /bin/busybox mount -t devtmpfs dev /dev
        export VYRE_PROGRAMS={programs} VYRE_SHRINK=0
        /bin/conformance {arguments} --nocapture --test-threads=1 2>&1 && echo && echo passed
        /bin/busybox sleep 1
        /bin/busybox poweroff -f\n"
    );
    fs::write(files.join("init"), init)?;
    quiet(Command::new("chmod").arg("+x").arg(files.join("init")));
    fs::copy(kernel, disk.join("vmlinuz"))?;
    fs::copy("/usr/lib/ISOLINUX/isolinux.bin", disk.join("isolinux.bin"))?;
    fs::copy("/usr/lib/syslinux/modules/bios/ldlinux.c32", disk.join("ldlinux.c32"))?;
    let menu = format!("default l\nlabel l\nkernel /vmlinuz\ninitrd /initrd\nappend {KERNEL_OPTIONS}\n");
    fs::write(disk.join("isolinux.cfg"), menu)?;
    quiet(Command::new("sh").args(["-c", "find . | cpio -o -H newc > ../disk/initrd"]).current_dir(&files));
    let image = ["-as", "mkisofs", "-quiet", "-o", "boot.iso", "-b", "isolinux.bin", "-c", "boot.cat", "-no-emul-boot"];
    let arguments = ["-boot-load-size", "4", "-boot-info-table", "disk"];
    quiet(Command::new("xorriso").args(image).args(arguments).current_dir(folder));
    // The display is served over the network, without waiting for a client. On hosts without sound, Bochs fails unless
    // configured without it.
    let configuration = "display_library: rfb, options=\"timeout=0\"
        romimage: file=/usr/share/bochs/BIOS-bochs-latest
        vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
        cpu: model=corei7_skylake_x, ips=50000000, reset_on_triple_fault=0
        memory: guest=1024, host=1024
        ata0-master: type=cdrom, path=boot.iso, status=inserted
        boot: cdrom
        com1: enabled=1, mode=file, dev=output.txt
        sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy
        log: bochs.log
        panic: action=fatal
        error: action=ignore
        info: action=ignore\n";
    fs::write(folder.join("bochsrc"), configuration.replace("        ", ""))
}

fn start(folder: &Path) -> Result<Child, String> {
    let screen = || fs::File::create(folder.join("screen.txt")).map_or_else(|_| Stdio::null(), Stdio::from);
    let mut bochs = Command::new("bochs");
    bochs
        .args(["-q", "-f", "bochsrc"])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(screen())
        .stderr(Stdio::null());
    let mut machine = bochs.spawn().map_err(|error| format!("cannot run bochs: {error}"))?;
    // Debian's Bochs prompts before it starts and after it has ended.
    let answered = machine.stdin.take().map_or(Ok(()), |mut input| input.write_all(b"c\nq\n"));
    answered.map(|()| machine).map_err(|error| error.to_string())
}
