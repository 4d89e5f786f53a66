//! Checks that the engine makes no system calls during token generation. A child process that would
//! be killed at its first call must survive until the end.
#![cfg(target_os = "linux")]

mod support;

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use shardwright_shim_abi::raw::*;
use support::*;

const WIDTH: u64 = 512;
const VARIABLE: &str = "SHARDWRIGHT_TEST_CALLS";
/// Longer than any plausible series of processes that lose their core within a millisecond.
const LIMIT: Duration = Duration::from_secs(120);

/// Builds maps that are worth a second thread, with a norm before each.
fn maps() -> Builder {
    let mut b = Builder::new("encode", SW_ENTRY_ENCODE, 1, 1);
    let mut x = b.input("x", SW_ROLE_GATHERED, &[1, WIDTH]);
    let norm = weight("norm", &[WIDTH], &values(WIDTH as usize, 3, 1.0), SW_DTYPE_F32);
    let stored: Vec<i32> =
        values((WIDTH * WIDTH) as usize, 1, 127.0).iter().map(|value| *value as i32).collect();
    for layer in 0..4 {
        let kind = (SW_QUANTISATION_PER_CHANNEL, 0);
        let name = format!("{layer}.map");
        let w = integers(&name, &[WIDTH, WIDTH], &stored, SW_DTYPE_I8, kind, &[1e-3; WIDTH as usize], 0);
        let w = b.constant(&w);
        x = b.norm(x, Some(&norm), WIDTH, 1.0);
        x = b.node(SW_OP_DYNAMIC_LINEAR, &[x, w], &[1, WIDTH], vec![]);
    }
    b.output("y", SW_ROLE_TAP, x);
    b
}

/// Forbids system calls from here on: any call kills the process, except calls for exiting and for
/// reading the time, which some systems serve without a call.
fn forbid_calls() {
    const ALLOWED: [libc::c_long; 3] = [libc::SYS_exit_group, libc::SYS_exit, libc::SYS_clock_gettime];
    // SAFETY: these functions only create plain values.
    let mut code = unsafe { vec![libc::BPF_STMT((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0)] };
    for (index, call) in ALLOWED.into_iter().enumerate() {
        let allow = (ALLOWED.len() - index) as u8;
        let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        // SAFETY: as above.
        code.push(unsafe { libc::BPF_JUMP(equal, call as u32, allow, 0) });
    }
    for result in [libc::SECCOMP_RET_KILL_PROCESS, libc::SECCOMP_RET_ALLOW] {
        // SAFETY: as above.
        code.push(unsafe { libc::BPF_STMT((libc::BPF_RET | libc::BPF_K) as u16, result) });
    }
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    // SAFETY: the program outlives the call, and no other state of this process is accessed.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0, "no new privileges");
        let filter = libc::SECCOMP_SET_MODE_FILTER;
        let all_threads = libc::SECCOMP_FILTER_FLAG_TSYNC;
        assert_eq!(libc::syscall(libc::SYS_seccomp, filter, all_threads, &program), 0, "a filter of calls");
    }
}

#[test]
#[ignore = "the child of the test below"]
fn steps_without_calls() {
    let Ok(what) = std::env::var(VARIABLE) else { return };
    let host = open(&[("threads", "2")]).expect("opened");
    let compiled = host.compile(&[maps().build()], &[]).expect("compiled");
    let mut loaded = host.load(&compiled.artefact, &[]).expect("loaded");
    let x = Bound::F32(values(WIDTH as usize, 7, 2.0));
    let mut bound = HashMap::from([("x".to_owned(), x)]);
    let mut run = || loaded.run("encode", 1, &mut bound).expect("ran");
    (0..20).for_each(|_| run());
    forbid_calls();
    if what == "sleep" {
        std::thread::sleep(Duration::from_millis(1));
    }
    (0..30).for_each(|_| run());
    // SAFETY: the call ends the process immediately.
    unsafe { libc::_exit(0) };
}

fn child(what: &str) -> ExitStatus {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["--exact", "steps_without_calls", "--ignored", "--test-threads", "1"]).env(VARIABLE, what);
    command.output().expect("started").status
}

#[test]
fn tokens_follow_one_another_without_a_call() {
    assert_eq!(child("sleep").signal(), Some(libc::SIGSYS), "the filter kills what calls the system");
    // A thread that loses its core makes the other thread sleep, which is a system call. A busy
    // machine may need several attempts.
    let start = Instant::now();
    let mut attempts = 0;
    loop {
        attempts += 1;
        let status = child("steps");
        if status.success() {
            break;
        }
        assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
        assert!(start.elapsed() < LIMIT, "{attempts} attempts");
    }
    println!("{attempts} attempts");
}
