//! The system call in which a thread waits for an answer.
//!
//! The kernel sends the same GETATTR before a write(2), before a read(2) at the end of a file and before an lseek(2)
//! to its end. Only the system call of the thread tells them apart (proc_pid_syscall(5)).

use std::{fs, thread, time::Duration};

/// Number of attempts, and the pause between two of them. A thread that has just sent its request may still run.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(5);

/// System calls that ask for the size of a file and write to none.
const READING: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_readv,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_lseek,
];

/// The state of a thread, as far as it is known.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    Running,
    Reading,
    Other,
}

/// Returns true if a thread is known to wait in a system call that writes to no file. It waits for an answer to a request,
/// so its system call does not end meanwhile. Other programs' system calls may be hidden from a user without rights.
pub fn is_known_to_read(pid: u32) -> bool {
    for _ in 0..TRIES {
        match fs::read_to_string(format!("/proc/{pid}/syscall")).map(|line| parse(&line)) {
            Ok(Call::Running) => thread::sleep(PAUSE),
            call => return matches!(call, Ok(Call::Reading)),
        }
    }
    false
}

/// Parses a line of proc_pid_syscall(5): the number, six arguments, the stack pointer and the program counter. Threads of
/// the kernel, which work for nfsd and io_uring, have no stack pointer, and the number is not that of their work. Programs
/// of 32 bits have other numbers, none of which makes a writing system call a reading one.
fn parse(line: &str) -> Call {
    let fields: Vec<&str> = line.split_whitespace().collect();
    if fields[..] == ["running"] {
        return Call::Running;
    }
    let [number, _, _, _, _, _, _, stack, _] = fields[..] else { return Call::Other };
    let reads = number.parse().is_ok_and(|number| READING.contains(&number));
    if reads && stack != "0x0" { Call::Reading } else { Call::Other }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_thread_of_a_program_in_a_reading_system_call_reads() {
        let line = |number: libc::c_long, stack| format!("{number} 0x3 0x0 0x1 0x0 0x0 0x0 {stack} 0x7f00\n");
        assert_eq!(parse(&line(libc::SYS_pread64, "0x7ffc")), Call::Reading);
        assert_eq!(parse(&line(libc::SYS_pwrite64, "0x7ffc")), Call::Other);
        assert_eq!(parse(&line(libc::SYS_read, "0x0")), Call::Other, "a thread of the kernel");
        assert_eq!(parse("running\n"), Call::Running);
        assert_eq!([parse("-1 0x7ffc 0x7f00\n"), parse("")], [Call::Other, Call::Other]);
    }

    #[test]
    fn a_process_that_cannot_be_seen_may_write() {
        assert!(!is_known_to_read(0));
    }
}
