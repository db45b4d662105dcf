//! Crash handling: fatal signals raised by machine code or drivers.
//!
//! The state of a crashed process is unreliable, and signal handlers may call async-signal-safe functions only. The handler therefore only
//! calls `execv` with the same command. The new process finds the signal in its `argv[0]`, reads the same files, and writes a reproducer at the
//! point where the old process executed code.

use std::ffi::{CString, OsString, c_char, c_int};
use std::os::unix::ffi::OsStringExt as _;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::out_of_memory;

const SIGNALS: [(c_int, &str); 5] = [
    (libc::SIGSEGV, "SIGSEGV"),
    (libc::SIGBUS, "SIGBUS"),
    (libc::SIGILL, "SIGILL"),
    (libc::SIGABRT, "SIGABRT"),
    (libc::SIGFPE, "SIGFPE"),
];

/// Prefix of `argv[0]` of the new process, before the name of the signal.
const NAME: &str = "vyre after ";

/// Null-terminated `execv` arguments of each signal: the executable, its new `argv[0]`, and its arguments.
static COMMANDS: [AtomicPtr<*const c_char>; SIGNALS.len()] = [const { AtomicPtr::new(null_mut()) }; SIGNALS.len()];

/// Signal of the crashed process that this process replaces.
pub(crate) fn earlier() -> Option<&'static str> {
    let name = std::env::args_os().next()?;
    let signal = name.to_str()?.strip_prefix(NAME)?;
    SIGNALS.iter().map(|(_, name)| *name).find(|name| *name == signal)
}

/// Installs the handlers. In a process started by a handler, a crash has its default effect.
#[allow(unsafe_code)]
pub(crate) fn arm() {
    let Ok(program) = std::env::current_exe() else { return };
    for ((signal, name), command) in SIGNALS.iter().zip(&COMMANDS) {
        let words = [program.clone().into_os_string(), OsString::from(format!("{NAME}{name}"))];
        let words = words.into_iter().chain(std::env::args_os().skip(1));
        let words = words.map(|word| CString::new(word.into_vec()).map(|word| word.into_raw().cast_const()));
        let Ok(words) = words.chain([Ok(null())]).collect::<Result<Vec<_>, _>>() else { return };
        command.store(words.leak().as_mut_ptr(), Ordering::Release);
        let handler: extern "C" fn(c_int) = crashed;
        // SAFETY: all zeros are a valid `sigaction` with an empty signal mask. The handler has the type required without `SA_SIGINFO`, and
        // calls async-signal-safe functions only.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as libc::sighandler_t;
            // An alternate stack in case of stack overflow; the default action if `execv` fails.
            action.sa_flags = libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESETHAND;
            libc::sigaction(*signal, &raw const action, null_mut());
        }
    }
}

#[allow(unsafe_code)]
extern "C" fn crashed(signal: c_int) {
    if signal == libc::SIGABRT {
        out_of_memory::exit_if_failed();
    }
    let at = SIGNALS.iter().position(|(known, _)| *known == signal);
    let words = at.map_or(null_mut(), |at| COMMANDS[at].load(Ordering::Acquire));
    // SAFETY: the arguments stored by `arm` are never freed, start with an executable and end with null; both functions are
    // async-signal-safe.
    unsafe {
        if !words.is_null() {
            libc::execv(*words, words.add(1).cast_const());
        }
        libc::raise(signal);
    }
}
