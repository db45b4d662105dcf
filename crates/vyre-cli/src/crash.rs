//! Crashes: signals that end the process, because machine code or a driver did what it must not.
//!
//! Nothing can be relied on then, and little is allowed in a handler of signals. This one does a single thing, which is allowed: it starts
//! the same command in place of the process. The new one knows by its name what happened. It reads the same files, and writes a
//! reproducer where the old one ran something.

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

/// What the new process is called, before the name of the signal.
const NAME: &str = "vyre after ";

/// For each signal, what to execute: the program, then its new name and its arguments, then null.
static COMMANDS: [AtomicPtr<*const c_char>; SIGNALS.len()] = [const { AtomicPtr::new(null_mut()) }; SIGNALS.len()];

/// The signal that ended the process in whose place this one is.
pub(crate) fn earlier() -> Option<&'static str> {
    let name = std::env::args_os().next()?;
    let signal = name.to_str()?.strip_prefix(NAME)?;
    SIGNALS.iter().map(|(_, name)| *name).find(|name| *name == signal)
}

/// Lets crashes start the command again from now on. A process that was started so crashes like any other.
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
        // SAFETY: all zeros are a valid `sigaction`, whose set of signals is empty. The handler has the type that is expected without
        // `SA_SIGINFO`, and calls nothing that a handler may not call.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as libc::sighandler_t;
            // The stack may be what is broken; and if nothing can be executed, the signal has its own effect.
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
    // SAFETY: what `arm` stores is never freed, begins with a program, and ends with null; and handlers may call both functions.
    unsafe {
        if !words.is_null() {
            libc::execv(*words, words.add(1).cast_const());
        }
        libc::raise(signal);
    }
}
