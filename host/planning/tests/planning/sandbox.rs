//! Hostile and broken planners: each ends only in its own typed error, which names the planner.

#![cfg(feature = "compiler")]

use std::time::Duration;

use shardwright_planning::builtin;
use shardwright_planning::check::check;
use shardwright_planning::error::{PlannerError, PlannerErrorKind as Kind, RefusalKind};
use shardwright_planning::registry::PlannerEntry;
use shardwright_planning::sandbox::{
    Bounds, CompiledCache, EngineKind, INTERFACE, LogLevel, Planner, Sandbox, admission,
};

use shardwright_trust::Trust;
use shardwright_vocabulary::ErrorKind;

use crate::common::{cuts, even, hostile, request, with_limit, with_option, with_times};

/// Fuel that a debug-sized test under Pulley uses up in well under a second.
const FUEL: u64 = 50_000_000;

fn sandbox(kind: EngineKind) -> Sandbox {
    Sandbox::with_bounds(kind, Bounds { fuel: FUEL, ..Bounds::default() }).unwrap()
}

fn load_error(wasm: &[u8]) -> PlannerError {
    Sandbox::new(EngineKind::Native).unwrap().load("given.wasm", wasm, None).unwrap_err()
}

/// Checks the kind and the beginning of an error that has no kind of its own.
fn expect(error: &PlannerError, kind: ErrorKind, begin: &str) {
    let Kind::Other(error) = &error.kind else { panic!("{error}") };
    assert!(error.kind() == kind && error.message().starts_with(begin), "{begin}: {error:?}");
}

/// Begins of errors of loading.
const GARBAGE: &str = "not a WebAssembly component: ";
const WRONG_WORLD: &str = "the component does not export shardwright:planner/api@";

fn component(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}

#[test]
fn what_is_no_planner_is_refused_when_loaded() {
    let core = component("(module)");
    expect(&load_error(&core), ErrorKind::Invalid, "a WebAssembly core module");

    let mut truncated = builtin::component().unwrap().to_vec();
    truncated.truncate(builtin::component().unwrap().len() / 2);
    let mut unknown_layer = core.clone();
    unknown_layer[6] = 7;
    for garbage in [&b""[..], b"\0asm", b"#!/bin/sh", b"(component)", &[0xff; 64], &truncated, &unknown_layer]
    {
        expect(&load_error(garbage), ErrorKind::Invalid, GARBAGE);
    }

    expect(&load_error(&component("(component)")), ErrorKind::Invalid, WRONG_WORLD);
    let other = component(r#"(component (instance $i) (export "somebody:planner/api@0.1.0" (instance $i)))"#);
    expect(&load_error(&other), ErrorKind::Invalid, WRONG_WORLD);
    let hollow = component(
        r#"(component (instance $i) (export "shardwright:planner/api@0.2.0-draft" (instance $i)))"#,
    );
    expect(&load_error(&hollow), ErrorKind::Invalid, WRONG_WORLD);

    let newer =
        component(r#"(component (instance $i) (export "shardwright:planner/api@0.2.0" (instance $i)))"#);
    let error = load_error(&newer);
    let begin = "the planner exports shardwright:planner/api@0.2.0, this host supports ";
    expect(&error, ErrorKind::Incompatible, begin);
    assert!(error.to_string().starts_with("planner `given.wasm`: "), "{error}");
    assert!(error.help().is_some());

    let clock = component(
        r#"(component (import "wasi:clocks/monotonic-clock@0.2.0" (instance (export "now" (func (result u64))))))"#,
    );
    let error = load_error(&clock);
    expect(&error, ErrorKind::Invalid, "the planner imports `wasi:");
    assert!(error.help().unwrap().contains("wasm32-unknown-unknown"));
    let function = component(r#"(component (import "anything" (func)))"#);
    expect(&load_error(&function), ErrorKind::Invalid, "the planner imports `anything`");
}

#[test]
fn size_and_time_of_compilation_are_bounded() {
    let small = Bounds { wasm_bytes: 100, ..Bounds::default() };
    let error = Sandbox::with_bounds(EngineKind::Native, small).unwrap().load(
        "big",
        builtin::component().unwrap(),
        None,
    );
    let begin = format!("{} bytes, expected at most 100", builtin::component().unwrap().len());
    expect(&error.unwrap_err(), ErrorKind::Invalid, &begin);

    let hasty = Bounds { compile_time: Duration::ZERO, ..Bounds::default() };
    let error = Sandbox::with_bounds(EngineKind::Native, hasty).unwrap().load(
        "slow",
        builtin::component().unwrap(),
        None,
    );
    let error = error.unwrap_err();
    expect(&error, ErrorKind::Planning, "compiling took longer than 0 ms");
    assert!(error.help().is_some(), "{error}");

    // The program's own planner has no time limit.
    let hasty = Bounds { compile_time: Duration::ZERO, ..Bounds::default() };
    let hasty = Sandbox::with_bounds(EngineKind::Native, hasty).unwrap();
    let cache = tempfile::tempdir().unwrap();
    builtin::load(&hasty, Some(&CompiledCache::new(cache.path()))).unwrap();
}

/// A process that waits while another compiles the built-in planner then reads the result.
#[test]
fn the_built_in_planner_is_compiled_once() {
    let directory = tempfile::tempdir().unwrap();
    let cache = CompiledCache::new(directory.path());
    let sandbox = Sandbox::new(EngineKind::Native).unwrap();
    let wasm = builtin::component().unwrap();
    let path = cache.path(&sandbox, wasm);
    let lock = shardwright_files::private_files::lock(&path.with_extension("lock")).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| builtin::load(&sandbox, Some(&cache)).unwrap());
        // Another planner does not wait for this one.
        sandbox.load("even", even(), Some(&cache)).unwrap();
        // This imitates the other process, which compiles.
        sandbox.load("generic", wasm, Some(&cache)).unwrap();
        assert!(!waits.is_finished(), "it waits");
        let written = std::fs::metadata(&path).unwrap().modified().unwrap();
        drop(lock);
        assert_eq!(waits.join().unwrap().description().name, "generic");
        assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), written, "it compiled again");
    });
}

/// A call of two bytes.
const CALL: &[u8] = &[0x10, 0];

/// Creates a component with one module of `functions` functions, each with `count` times the same
/// instructions.
fn bomb(functions: u32, instructions: &[u8], count: usize) -> Vec<u8> {
    fn number(mut value: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }
    let with_length = |bytes: Vec<u8>| [number(bytes.len()), bytes].concat();
    let section = |id: u8, bytes: Vec<u8>| [vec![id], with_length(bytes)].concat();
    let body = [vec![0], instructions.repeat(count), vec![0x0b]].concat();
    let bodies = with_length(body).repeat(functions as usize);
    let module = [
        b"\0asm\x01\0\0\0".to_vec(),
        section(1, vec![1, 0x60, 0, 0]),
        section(3, [number(functions as usize), vec![0; functions as usize]].concat()),
        section(10, [number(functions as usize), bodies].concat()),
    ];
    [b"\0asm\x0d\0\x01\0".to_vec(), section(1, module.concat())].concat()
}

/// Creates a sandbox in which no compilation exceeds its time.
fn patient() -> Sandbox {
    let bounds = Bounds { compile_time: Duration::from_secs(3600), ..Bounds::default() };
    Sandbox::with_bounds(EngineKind::Native, bounds).unwrap()
}

/// Creates a component that consists of one function. Its parameter is an address, and its result a
/// 64-bit integer. The instance under the planner's name has no functions.
fn function(body: &str) -> Vec<u8> {
    component(&format!(
        r#"(component
            (core module (memory 1) (func (param i32) (result i64) {body}))
            (instance $none) (export "{INTERFACE}" (instance $none)))"#
    ))
}

/// Creates a function that adds up `count` values of its memory. An optimising compiler loads all
/// of them before it adds the first two.
fn loads(count: u64) -> Vec<u8> {
    let load = |at: u64| format!("(i64.load offset={} (local.get 0)) i64.add ", at * 7919 % 16_000 * 8);
    function(&format!("i64.const 0 {}", (1..=count).map(load).collect::<String>()))
}

/// Creates a function that computes `count` addresses twice. An optimising compiler computes each
/// once, and keeps it.
fn addresses(count: u64) -> Vec<u8> {
    let address = |at: u64| format!("(i32.mul (local.get 0) (i32.const {}))", 2 * at + 1);
    let store = |at| format!("(i64.store {} (i64.const 5)) ", address(at));
    let add = |at| format!("(i64.extend_i32_u {}) i64.add ", address(at));
    let (stores, adds): (String, String) = ((0..count).map(store).collect(), (0..count).map(add).collect());
    function(&format!("{stores} i64.const 0 {adds}"))
}

/// Creates a function that computes a root of a root, `count` times.
fn roots(count: u64) -> Vec<u8> {
    let roots = "f64.sqrt ".repeat(count as usize);
    function(&format!("local.get 0 f64.convert_i32_s {roots} i64.reinterpret_f64"))
}

/// Creates a function with `count` blocks that have a result.
fn results(count: u64) -> Vec<u8> {
    let block = "(drop (if (result i64) (local.get 0) (then (i64.const 1)) (else (i64.const 2)))) ";
    function(&format!("{} i64.const 0", block.repeat(count as usize)))
}

/// Creates a function that loads `count` values onto the stack before it adds them.
fn waiting(count: u64) -> Vec<u8> {
    let load = |at: u64| format!("(i64.load offset={} (local.get 0)) ", at * 8);
    let adds = "i64.add ".repeat(count as usize - 1);
    function(&format!("{} {adds}", (0..count).map(load).collect::<String>()))
}

/// Variable with the component that a child compiles.
#[cfg(target_os = "linux")]
const COMPONENT: &str = "SHARDWRIGHT_TEST_COMPONENT";

#[cfg(target_os = "linux")]
#[test]
#[ignore = "the child of the test below"]
fn child_that_compiles() {
    let Ok(path) = std::env::var(COMPONENT) else { return };
    let error = patient().load("largest.wasm", &std::fs::read(path).unwrap(), None).unwrap_err();
    // The functions of the instance are missed after compiling.
    expect(&error, ErrorKind::Invalid, WRONG_WORLD);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("\n{}", status.lines().find(|line| line.starts_with("VmHWM:")).unwrap());
}

/// `docs/security.md` documents the bound.
#[cfg(target_os = "linux")]
#[test]
fn the_largest_functions_are_compiled_within_a_gigabyte() {
    let directory = tempfile::tempdir().unwrap();
    let values = admission::FUNCTION_VALUES;
    for (name, wasm) in [
        ("loads", loads((values - 10) / 15)),
        // Their bytes end first.
        ("addresses", addresses(admission::FUNCTION_BYTES / 22)),
        ("roots", roots((values - 10) / 6)),
        ("results", results(1100)),
        ("waiting", waiting(2000)),
    ] {
        let path = directory.path().join(name);
        std::fs::write(&path, wasm).unwrap();
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["sandbox::child_that_compiles", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(COMPONENT, &path)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let peak = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
        let peak: u64 = peak.unwrap_or_else(|| panic!("{name}: {output:?}")).trim().parse().unwrap();
        assert!(output.status.success() && peak * 1024 < 1_000_000_000, "{name}: {peak} kB");
    }
}

/// A component whose compilation would need gigabytes is refused because of its content, not
/// because of a time limit.
#[test]
fn what_no_compiler_should_see_is_refused_before_it_does() {
    let sandbox = patient();
    let refused = |wasm: &[u8], words: &str| {
        let error = sandbox.load("bomb.wasm", wasm, None).unwrap_err();
        expect(&error, ErrorKind::Planning, "too complex: more than ");
        let text = error.to_string();
        let (cap, what) = text.rsplit_once("more than ").unwrap().1.split_once(' ').unwrap();
        assert_eq!(what, words, "{error}");
        assert!(cap.parse::<u64>().unwrap() > 0 && error.help().is_some(), "{error}");
        assert!(text.contains("bomb.wasm"), "{error}");
    };
    // 30 MB in four functions, for which a compiler needs seven gigabytes.
    refused(&bomb(4, CALL, 7_500_000 / 2), "bytes of one function");
    // `i32.const` in six bytes, and `drop`.
    let number = [0x41, 0x80, 0x80, 0x80, 0x80, 0, 0x1a];
    refused(&bomb(60, &number, admission::FUNCTION_BYTES as usize / 7 - 10), "bytes of functions");
    refused(&bomb(60_000, CALL, 1), "functions");

    let module = |text: String| component(&format!("(component (core module {text}))"));
    let wide = "i32 ".repeat(65);
    refused(&module(format!("(func (param {wide}))")), "parameters and results of a function");
    let types: String = (0..10_001).map(|_| "(type (func))").collect();
    refused(&module(types), "types of functions");
    let results = "i64 ".repeat(60);
    let results =
        format!("(type $wide (func (result {results}))) (import \"a\" \"b\" (func $wide (type $wide)))");
    let calls = "(call $wide) (unreachable)".repeat(10_000);
    refused(&module(format!("{results} (func {calls})")), "values in one function");
    refused(&loads(admission::FUNCTION_VALUES / 14), "values in one function");
    let blocks = "(block (br_if 0 (i32.const 0)))".repeat(300);
    let locals = "i32 ".repeat(6000);
    let body = format!("(func (local {locals}) {blocks})");
    refused(&module(body), "variables times blocks in one function");
    refused(&self::results(1300), "variables times blocks in one function");
    refused(&waiting(2100), "variables times blocks in one function");
    // Many functions, each of which is small enough.
    let calls = "(call $wide) (unreachable)".repeat(8000);
    let many = format!("(func {calls})").repeat(25);
    refused(&module(format!("{results} {many}")), "values in all functions");
    let locals = "i32 ".repeat(4500);
    let many = format!("(func (local {locals}) {blocks})").repeat(17);
    refused(&module(many), "variables times blocks in all functions");
    let modules = "(core module)".repeat(101);
    refused(&component(&format!("(component {modules})")), "modules");

    // The interface is checked before the component is compiled.
    let largest = bomb(22, CALL, (admission::FUNCTION_VALUES / 7) as usize - 10);
    let error = sandbox.load("no-planner.wasm", &largest, None).unwrap_err();
    expect(&error, ErrorKind::Invalid, WRONG_WORLD);
}

#[test]
fn files_are_named_when_missing_or_too_big() {
    let directory = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::new(EngineKind::Native).unwrap();
    let path = directory.path().join("absent.wasm");
    let error = PlannerEntry::from_path(&path).load(&sandbox, None, &Trust::off()).unwrap_err();
    let Kind::MissingFile(missing) = &error.kind else { panic!("{error}") };
    assert!(missing.is_not_found() && missing.place() == path.to_str(), "{error}");
    assert!(error.to_string().contains("absent.wasm"));

    let path = directory.path().join("long.wasm");
    std::fs::write(&path, [0; 200]).unwrap();
    let small = Bounds { wasm_bytes: 100, ..Bounds::default() };
    let error = PlannerEntry::from_path(&path)
        .load(&Sandbox::with_bounds(EngineKind::Native, small).unwrap(), None, &Trust::off())
        .unwrap_err();
    expect(&error, ErrorKind::Invalid, "more than 100 bytes");
    let error = PlannerEntry::from_path(directory.path()).load(&sandbox, None, &Trust::off()).unwrap_err();
    assert!(matches!(&error.kind, Kind::MissingFile(error) if error.message().contains("a directory")));
}

/// All attacks run under both engines, because these stop guests by different means.
#[test]
fn attacks_at_run_time_end_in_their_own_error() {
    for engine in [EngineKind::Native, EngineKind::Pulley] {
        let planner = sandbox(engine).load("hostile.wasm", hostile(), None).unwrap();
        let behave = |behave: &str| {
            let answer = planner.make_plan(&with_option(request(4), "behave", behave));
            let error = answer.plan.expect_err(behave);
            assert_eq!(
                (error.planner.as_str(), error.version.as_deref()),
                ("hostile", Some("6.6.6")),
                "{behave}"
            );
            error.kind
        };
        let over_bound = |name: &str, begin: &str| {
            let kind = behave(name);
            let Kind::OverBound(error) = &kind else { panic!("{name}: {kind}") };
            let message = error.message();
            assert!(message.starts_with(begin) && message.ends_with("`make-plan`"), "{error}");
            assert_eq!(error.kind(), ErrorKind::Planning);
        };
        over_bound("loop", &format!("used up its {FUEL} units of fuel in "));
        over_bound("memory", "requested more than ");
        over_bound("aliased-output", "returned more than ");
        over_bound("giant-output", "returned more than ");
        over_bound("flood-lines", "logged more than ");
        over_bound("flood-bytes", "logged more than ");
        let trapped = |name: &str, begin: &str| {
            let kind = behave(name);
            let Kind::Trapped(error) = &kind else { panic!("{name}: {kind}") };
            assert!(error.message().starts_with(begin), "{name}: {error}");
        };
        trapped("recurse", "overflowed its stack in `make-plan`");
        trapped("recurse-with-arrays", "");
        trapped("panic", "stopped in `make-plan`: ");
        trapped("index", "stopped in `make-plan`: ");
        assert!(matches!(
            behave("refuse"),
            Kind::Refused { kind: RefusalKind::Unsupported, details, .. } if details.len() == 1
        ));
        let Kind::Other(fault) = behave("bad-scale") else { panic!("a scale that is not finite") };
        assert!(fault.place().is_some_and(|place| place.starts_with("plan: shard ")), "{fault}");
        assert!(fault.message().starts_with("expected a finite scale above zero"), "{fault}");

        // After all attacks the same planner still answers, because every call has its own
        // instance.
        assert!(planner.make_plan(&request(4)).plan.is_ok());
    }
}

/// A policy can change times before it passes them on to the solver. The result is a plan for the
/// real request or a refusal, but the planner does not stop.
#[test]
fn distorted_times_end_in_a_plan_or_a_refusal() {
    let planner = sandbox(EngineKind::Native).load("hostile.wasm", hostile(), None).unwrap();
    for behave in ["reversed-times", "wide-times", "overflowing-times"] {
        let mut request = with_limit(request(6), "ops", 300);
        request.goals.token_microseconds = Some(1_000_000);
        match planner.make_plan(&with_option(request.clone(), "behave", behave)).plan {
            Ok(plan) => drop(check(plan, &request).unwrap()),
            Err(error) => assert!(matches!(error.kind, Kind::Refused { .. }), "{behave}: {error}"),
        }
    }
}

#[test]
fn log_lines_come_back_with_the_answer() {
    let planner = sandbox(EngineKind::Native).load("hostile.wasm", hostile(), None).unwrap();
    let answer = planner.make_plan(&with_option(request(4), "behave", "chatter"));
    let lines: Vec<_> = answer.log.iter().map(|line| (line.level, line.message.as_str())).collect();
    assert_eq!(lines, [(LogLevel::Debug, "first"), (LogLevel::Warn, "second")]);
    let answer = planner.make_plan(&with_option(request(4), "behave", "flood-lines"));
    assert_eq!(answer.log.len(), Bounds::default().log_lines);
}

fn requests() -> Vec<shardwright_planning::request::Request> {
    let mut shared = request(12);
    if let shardwright_planning::request::Body::Layers(layers) = &mut shared.model.components[1].body {
        for (layer, donor) in layers.iter_mut().skip(6).zip([4, 5].into_iter().cycle()) {
            layer.donor = Some(donor);
            layer.writes_state = false;
        }
    }
    vec![
        request(1),
        request(35),
        with_limit(request(35), "ops", 1234),
        with_limit(with_limit(request(35), "weight-bytes", 9000), "shards", 5),
        with_times(with_limit(request(20), "ops", 700), 3, 11),
        with_limit(shared, "ops", 500),
        with_option(request(9), "balance", "ops"),
    ]
}

#[test]
fn the_same_request_gives_the_same_bytes_natively_and_under_pulley() {
    let planners = |kind| {
        let sandbox = Sandbox::new(kind).unwrap();
        [builtin::load(&sandbox, None).unwrap(), sandbox.load("even.wasm", even(), None).unwrap()]
    };
    let native = planners(EngineKind::Native);
    let pulley = planners(EngineKind::Pulley);
    let mut refusals = 0;
    for request in requests() {
        for (native, pulley) in native.iter().zip(&pulley) {
            let ask = |planner: &Planner| planner.make_plan(&request).plan;
            let answer = |planner: &Planner| {
                ask(planner).map(|plan| plan.canonical_bytes()).map_err(|error| error.to_string())
            };
            assert_eq!(answer(native), answer(pulley));
            assert_eq!(answer(native), answer(native));
            match ask(native) {
                Ok(plan) => drop(check(plan, &request).unwrap()),
                // `even` cuts by one number only, and refuses what the limits do not allow.
                Err(error) => {
                    assert_eq!(native.description().name, "even");
                    assert!(matches!(error.kind, Kind::Refused { .. }), "{error}");
                    refusals += 1;
                }
            }
        }
    }
    // Few of the requests, so that the comparison is about plans.
    assert!(refusals <= 4, "{refusals}");
}

#[test]
fn a_request_survives_its_file_form() {
    for request in requests() {
        let bytes = request.canonical_bytes();
        let read: shardwright_planning::request::Request = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(read, request);
        assert_eq!(read.canonical_bytes(), bytes);
        request.validate().unwrap();
    }
}

#[test]
fn plans_that_do_not_hold_are_faulted() {
    let planner = sandbox(EngineKind::Native).load("hostile.wasm", hostile(), None).unwrap();
    let limited = with_limit(request(6), "ops", 300);
    for behave in [
        "skip-layer",
        "repeat-shard",
        "overlap",
        "exceed-layers",
        "unknown-target",
        "no-shards",
        "no-segments",
        "component-twice-in-a-shard",
        "joined-without-its-boundaries",
        "one-shard-too-large",
    ] {
        let request = with_option(limited.clone(), "behave", behave);
        let plan = planner.make_plan(&request).plan.unwrap();
        assert!(check(plan, &request).is_err(), "{behave}");
    }
}

#[test]
fn the_cache_is_keyed_by_content_and_engine_and_survives_damage() {
    let directory = tempfile::tempdir().unwrap();
    let cache = CompiledCache::new(directory.path().join("planners"));
    let native = Sandbox::new(EngineKind::Native).unwrap();
    let pulley = Sandbox::new(EngineKind::Pulley).unwrap();
    let path = cache.path(&native, builtin::component().unwrap());
    assert_ne!(path, cache.path(&pulley, builtin::component().unwrap()));
    assert_ne!(path, cache.path(&native, even()));
    assert!(!path.exists());

    let ask = |planner: Planner| planner.make_plan(&request(5)).plan.unwrap();
    let fresh = ask(native.load("generic", builtin::component().unwrap(), Some(&cache)).unwrap());
    let stored = std::fs::read(&path).unwrap();
    assert_eq!(ask(native.load("generic", builtin::component().unwrap(), Some(&cache)).unwrap()), fresh);

    // The hash detects any damage and the planner is compiled again. Altered code never runs.
    for position in [0, 8, 40, 72, stored.len() / 2, stored.len() - 1] {
        let mut damaged = stored.clone();
        damaged[position] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert_eq!(ask(native.load("generic", builtin::component().unwrap(), Some(&cache)).unwrap()), fresh);
        assert_eq!(std::fs::read(&path).unwrap(), stored, "byte {position}");
    }
    std::fs::write(&path, &stored[..20]).unwrap();
    assert_eq!(ask(native.load("generic", builtin::component().unwrap(), Some(&cache)).unwrap()), fresh);
    assert_eq!(cuts(&fresh), [(0, 5)]);
}

/// The files are machine code: anyone who can write them could run any code here.
#[cfg(unix)]
#[test]
fn compiled_planners_that_others_may_have_written_are_not_run() {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("planners");
    let cache = CompiledCache::new(&folder);
    let sandbox = Sandbox::new(EngineKind::Native).unwrap();
    let load = || sandbox.load("even", even(), Some(&cache)).unwrap();
    let (path, other) = (cache.path(&sandbox, even()), cache.path(&sandbox, builtin::component().unwrap()));
    assert_eq!(load().load_notice(), None);
    sandbox.load("generic", builtin::component().unwrap(), Some(&cache)).unwrap();
    let sound = fs::read(&path).unwrap();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&path)), (0o700, 0o600));

    // Another planner's code with a matching header, which a hash in the file cannot detect.
    let mut forged = fs::read(&other).unwrap();
    forged[8..40].copy_from_slice(&sound[8..40]);
    let forge = || fs::write(&path, &forged).unwrap();
    let set = |path: &std::path::Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let expect_disbelief = |planner: &Planner, words: &str| {
        assert_eq!(planner.description().name, "even", "the forged code was run");
        let reason = planner.load_notice().expect("a word of it");
        assert!(reason.contains(words) && reason.contains("compiled again"), "{reason}");
    };
    for loose in [0o777, 0o770, 0o1777] {
        forge();
        set(&folder, loose);
        expect_disbelief(&load(), "may be written by others");
        assert_eq!(fs::read(&path).unwrap(), forged, "nothing is put into a folder that is not believed");
        set(&folder, 0o700);
    }
    set(&path, 0o666);
    expect_disbelief(&load(), "may be written by others");
    // The file was replaced by one of this user.
    assert_eq!((mode(&path), fs::read(&path).unwrap() == sound), (0o600, true));
    assert_eq!(load().load_notice(), None);

    forge();
    let moved = directory.path().join("elsewhere");
    fs::rename(&path, &moved).unwrap();
    symlink(&moved, &path).unwrap();
    expect_disbelief(&load(), "symbolic link");
    assert!(fs::symlink_metadata(&path).unwrap().is_file());

    // Only the superuser may change the owner of a file.
    for target in [&path, &folder] {
        forge();
        if chown(target, Some(65534), None).is_ok() {
            expect_disbelief(&load(), "belongs to user 65534");
        }
    }
}

/// Files of killed processes are removed, but not a file that is being written.
#[test]
fn files_in_the_making_do_not_stay() {
    let directory = tempfile::tempdir().unwrap();
    let cache = CompiledCache::new(directory.path());
    let sandbox = Sandbox::new(EngineKind::Native).unwrap();
    let (old, new) = (directory.path().join("0.123.partial"), directory.path().join("1.partial"));
    for path in [&old, &new] {
        std::fs::write(path, b"half").unwrap();
    }
    let hours_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
    std::fs::File::options().write(true).open(&old).unwrap().set_modified(hours_ago).unwrap();
    sandbox.load("even", even(), Some(&cache)).unwrap();
    let mut left: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    left.sort();
    let mut expected = vec![new, cache.path(&sandbox, even())];
    expected.sort();
    assert_eq!(left, expected);
}
