//! Compares the Rust twin with the header as a C compiler reads it: the size of every struct, the
//! offset and size of every member, and every number.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use shardwright_shim_abi::raw::*;
use shardwright_shim_abi::sized::Struct;
use shardwright_vocabulary::OpKind;

/// A struct of the Rust twin: its C name, size, and members with offset and size.
struct Layout {
    name: &'static str,
    size: usize,
    minimum: u32,
    members: Vec<(&'static str, usize, usize)>,
}

macro_rules! layouts {
    ($($rust:ident = $c:literal { $($member:ident),* },)*) => {
        fn layouts() -> Vec<Layout> {
            fn size_of_member<S, M>(_: impl Fn(&S) -> &M) -> usize {
                size_of::<M>()
            }
            vec![$({
                // Without `..`, so that a member missing from this list does not compile.
                let _ = |value: $rust| { let $rust { $($member: _),* } = value; };
                Layout {
                    name: $c,
                    size: size_of::<$rust>(),
                    minimum: {
                        assert_eq!(<$rust as Struct>::NAME, $c);
                        <$rust as Struct>::MINIMUM
                    },
                    members: vec![$((
                        stringify!($member),
                        std::mem::offset_of!($rust, $member),
                        size_of_member(|value: &$rust| &value.$member),
                    )),*],
                }
            }),*]
        }
    };
}

layouts! {
SwDetail = "sw_detail" { size, key, value },
SwError = "sw_error" { size, error_class, reserved, vendor_code, message, log_tail, details, detail_count },
SwHost = "sw_host" { size, version_min, version_max, name, log, log_context },
SwAnswer = "sw_answer" { size, version_min, version_max, version, reserved, table, refusal },
SwOption = "sw_option" { size, key, value },
SwDescription = "sw_description" { size, name, vendor, version, vendor_library, instance_limit },
SwDevice = "sw_device" { size, name, soc, detail, kind, memory_kinds, memory_bytes },
SwLimit = "sw_limit" { size, name, value, provenance, reserved, note },
SwFlag = "sw_flag" { size, name, description, kind, stage, standard, choices, choice_count, minimum, maximum },
SwVerdict = "sw_verdict" { size, node, verdict, reserved, reason },
SwEstimate = "sw_estimate" { size, time_microseconds, provenance, reserved, bytes_moved, uncosted, uncosted_count, operations, artefact_bytes, shared_bytes },
SwFlagVerdict = "sw_flag_verdict" { size, name, verdict, reserved, evidence },
SwPlacement = "sw_placement" { size, entry, node, place, reason },
SwCompatibility = "sw_compatibility" { size, answer, reserved, reason },
SwInspection = "sw_inspection" { size, format, document },
SwLoadedEntry = "sw_loaded_entry" { size, index, name, rows, context, binding_count },
SwBinding = "sw_binding" { size, index, name, direction, role, dtype, update, shape, strides, rank, bytes, alignment, memory_kinds, reserved, scale, zero_point },
SwFact = "sw_fact" { size, name, description, kind, required, choices, choice_count, minimum, maximum },
SwDescriptionSink = "sw_description_sink" { size, context, item },
SwDeviceSink = "sw_device_sink" { size, context, item },
SwLimitSink = "sw_limit_sink" { size, context, item },
SwFlagSink = "sw_flag_sink" { size, context, item },
SwFlagVerdictSink = "sw_flag_verdict_sink" { size, context, item },
SwVerdictSink = "sw_verdict_sink" { size, context, item },
SwEstimateSink = "sw_estimate_sink" { size, context, item },
SwCompatibilitySink = "sw_compatibility_sink" { size, context, item },
SwInspectionSink = "sw_inspection_sink" { size, context, item },
SwLoadedEntrySink = "sw_loaded_entry_sink" { size, context, item },
SwBindingSink = "sw_binding_sink" { size, context, item },
SwFactSink = "sw_fact_sink" { size, context, item },
SwChip = "sw_chip" { size, name, aliases, alias_count, facts, fact_count },
SwQuantisation = "sw_quantisation" { size, kind, axis, block, scale_dtype, bits, scales, scale_count, zero_points, zero_point_count },
SwWeight = "sw_weight" { size, name, part, data, length, dtype, rank, shape, quantisation },
SwTensor = "sw_tensor" { size, name, dtype, rank, shape, quantisation },
SwAttribute = "sw_attribute" { size, name, kind, reserved, integer, number, integers, integer_count, text },
SwNode = "sw_node" { size, op, op_version, name, layer, inputs, input_count, outputs, output_count, attributes, attribute_count },
SwPort = "sw_port" { size, tensor, role, name, index, dtype, reserved, scale, zero_point },
SwConstant = "sw_constant" { size, tensor, reserved, weight },
SwEntry = "sw_entry" { size, name, kind, reserved, rows, context, tensors, tensor_count, nodes, node_count, inputs, input_count, outputs, output_count, constants, constant_count },
SwWorkOrder = "sw_work_order" { size, name, entries, entry_count, weights, weight_count, flags, flag_count, options, option_count },
SwCompileOutput = "sw_compile_output" { size, context, write, head, progress, cancelled, flag, placement, made_for },
SwArtefact = "sw_artefact" { size, head, head_length, pointer, length, fd, reserved, fd_offset },
SwImport = "sw_import" { size, kind, fd, fd_offset, handle, length },
SwBound = "sw_bound" { size, buffer, pointer, offset, length },
SwRun = "sw_run" { size, entry, rows, bounds, bound_count, deadline_nanoseconds, largest_logits },
SwTable = "sw_table" { size, version, draft, error_free, describe, open, close, devices, limits, flags, check, estimate, compile, compatibility, load, unload, entries, bindings, run, cancel, buffer_allocate, buffer_import, buffer_free, buffer_map, buffer_sync, recover, inspect, facts, chip, flag_verdicts },}

fn header() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/include/shim.h")).unwrap()
}

/// Compiles and runs a C program that prints `key value` lines.
fn run_c(source: &str, compiler: &str, language: &str) -> BTreeMap<String, u64> {
    let directory = tempfile::tempdir().unwrap();
    let (file, program) = (directory.path().join("layout.c"), directory.path().join("layout"));
    std::fs::write(&file, source).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let output = Command::new(compiler)
        .args(["-x", language, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
        .args([include.as_path(), &file, Path::new("-o"), &program])
        .output()
        .expect("a C compiler is needed for this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new(&program).output().unwrap();
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| {
            let (key, value) = line.split_once(' ').unwrap();
            (key.to_owned(), value.parse().unwrap())
        })
        .collect()
}

#[test]
fn every_struct_lies_in_memory_as_the_header_says() {
    let layouts = layouts();
    let mut source = String::from("#include <stdio.h>\n#include <shim.h>\nint main(void) {\n");
    for layout in &layouts {
        let name = layout.name;
        writeln!(source, "printf(\"{name} %llu\\n\", (unsigned long long)sizeof(struct {name}));").unwrap();
        for (member, ..) in &layout.members {
            writeln!(
                source,
                "printf(\"{name}.{member} %llu\\n\", (unsigned long long)offsetof(struct {name}, {member}));\
                 printf(\"{name}.{member}.size %llu\\n\", \
                 (unsigned long long)sizeof(((struct {name} *)0)->{member}));"
            )
            .unwrap();
        }
    }
    source.push_str("return 0; }\n");
    let reported = run_c(&source, "cc", "c");
    for layout in &layouts {
        assert_eq!(reported[layout.name], layout.size as u64, "{}", layout.name);
        for (member, offset, size) in &layout.members {
            let key = format!("{}.{member}", layout.name);
            assert_eq!(reported[&key], *offset as u64, "{key}");
            assert_eq!(reported[&format!("{key}.size")], *size as u64, "{key}");
        }
        // Required by rule 2 of the header.
        assert_eq!(layout.members[0], ("size", 0, 8), "{}", layout.name);
    }
}

/// A shorter struct ends between two members. The header lists the members beyond that end, which a
/// shim may leave out.
#[test]
fn every_struct_has_a_least_size_in_the_header() {
    let header = header();
    let numbers = rust_numbers();
    for Layout { name, size, minimum, members } in layouts() {
        let constant = format!("SW_MINIMUM_{}", name["sw_".len()..].to_uppercase());
        assert_eq!(numbers.get(&constant), Some(&u64::from(minimum)), "{constant}");
        let line = header.lines().find(|line| line.starts_with(&format!("#define {constant} "))).unwrap();
        match members.iter().find(|(_, offset, _)| *offset >= minimum as usize) {
            None => assert!(size == minimum as usize && !line.contains("/*"), "{line}: {size} bytes"),
            Some((first, offset, _)) => {
                assert_eq!(*offset, minimum as usize, "{line} cuts the member before `{first}`");
                assert!(line.contains(&format!("/* without: {first}")), "{line} does not name `{first}`");
            }
        }
        // A later version could append a member that falls into a hole. The bytes of a hole are
        // undefined.
        assert_eq!(members.iter().map(|(.., bytes)| bytes).sum::<usize>(), size, "{name} has a hole");
    }
    assert_eq!(numbers.keys().filter(|name| name.starts_with("SW_MINIMUM_")).count(), layouts().len());
}

/// The header's check of the machine does not compile for a 32-bit machine.
#[test]
fn machines_that_the_contract_is_not_for_are_refused() {
    let compile = |target: &[&str]| {
        let directory = tempfile::tempdir().unwrap();
        Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
            .args([
                "--crate-type",
                "lib",
                "--crate-name",
                "machine",
                "--emit",
                "metadata",
                "--edition",
                "2024",
            ])
            .args(target)
            .arg("--out-dir")
            .arg(directory.path())
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine.rs"))
            .output()
            .expect("the compiler that compiled this")
    };
    let here = compile(&[]);
    assert!(here.status.success(), "{}", String::from_utf8_lossy(&here.stderr));
    let small = compile(&["--target", "wasm32-unknown-unknown"]);
    let said = String::from_utf8_lossy(&small.stderr);
    assert!(!small.status.success() && said.contains("64-bit little-endian machines"), "{said}");
}

#[test]
fn the_list_of_structs_is_complete() {
    let header = header();
    let defined: Vec<&str> = header
        .lines()
        .filter_map(|line| {
            line.strip_prefix("typedef ").or(Some(line))?.strip_prefix("struct ")?.strip_suffix(" {")
        })
        .collect();
    let mut listed: Vec<&str> = layouts().iter().map(|layout| layout.name).collect();
    let mut defined = defined;
    listed.sort_unstable();
    defined.sort_unstable();
    assert_eq!(defined, listed);
}

macro_rules! operation_numbers {
    ($($case:ident $constant:ident $number:literal $name:literal [$($operand:literal),*]
        [$($attribute:ident: $kind:ident),*] $meaning:literal;)*) => {
        [$((stringify!($constant), $number)),*]
    };
}

/// Collects the numbers from the `pub const NAME: u32 = value;` lines of the twin and from the list
/// of operations.
fn rust_numbers() -> BTreeMap<String, u64> {
    let operations = shardwright_vocabulary::operations!(operation_numbers);
    let operations = operations.into_iter().map(|(name, number)| (name.to_owned(), number));
    include_str!("../../src/raw.rs")
        .lines()
        .filter_map(|line| {
            let (name, value) = line.strip_prefix("pub const ")?.split_once(": u32 = ")?;
            let value = value.strip_suffix(';')?.replace('_', "");
            let value = match value.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok()?,
                None => value.parse().ok()?,
            };
            Some((name.to_owned(), value))
        })
        .chain(operations)
        .collect()
}

/// The page for shim authors has a row for every operation.
#[test]
fn the_page_lists_every_operation() {
    let page = include_str!("../../../README.md");
    for operation in OpKind::ALL {
        let attributes: Vec<String> =
            operation.attributes().iter().map(|attribute| format!("`{}`", attribute.name)).collect();
        let (number, name, meaning) = (operation.number(), operation.name(), operation.meaning());
        let (operands, attributes) = (operation.operands().join(", "), attributes.join(", "));
        let row = format!("| {number} | {name} | {operands} | {attributes} | {meaning} |");
        assert!(page.lines().any(|line| line == row), "vendor-shims/README.md lacks the row\n{row}");
    }
    let rows = page.lines().skip_while(|line| !line.starts_with("| No. | Operation |")).skip(2);
    assert_eq!(rows.take_while(|line| line.starts_with('|')).count(), OpKind::ALL.len());
}

#[test]
fn every_number_is_the_headers() {
    let header = header();
    let names: Vec<&str> = header
        .lines()
        .filter_map(|line| line.strip_prefix("#define SW_"))
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, value)| {
            !name.contains('(') && value.trim_start().starts_with(|c: char| c.is_ascii_digit())
        })
        .map(|(name, _)| name)
        .collect();
    assert!(names.len() > 100, "{}", names.len());
    let mut source = String::from("#include <stdio.h>\n#include <shim.h>\nint main(void) {\n");
    for name in &names {
        writeln!(source, "printf(\"SW_{name} %llu\\n\", (unsigned long long)SW_{name});").unwrap();
    }
    source.push_str("return 0; }\n");
    assert_eq!(run_c(&source, "cc", "c"), rust_numbers());
}

#[test]
fn the_header_is_also_cxx() {
    if Command::new("c++").arg("--version").output().is_err() {
        eprintln!("skipped: no C++ compiler here");
        return;
    }
    let reported = run_c(
        "#include <shim.h>\n#include <cstdio>\nint main() { std::printf(\"table %llu\\n\", \
         static_cast<unsigned long long>(sizeof(sw_table))); return 0; }\n",
        "c++",
        "c++",
    );
    assert_eq!(reported["table"], size_of::<SwTable>() as u64);
}

/// Returns the header without its comments.
fn code() -> String {
    let header = header();
    let mut code = String::new();
    let mut rest = header.as_str();
    while let Some(start) = rest.find("/*") {
        code.push_str(&rest[..start]);
        rest = &rest[start + rest[start..].find("*/").unwrap() + 2..];
    }
    code.push_str(rest);
    code
}

/// Detects a host and a shim compiled from different headers, in any language.
#[test]
fn the_draft_is_the_headers() {
    let code = code();
    let lines = code.lines().filter(|line| !line.starts_with("#define SW_DRAFT "));
    let bytes = lines.flat_map(str::bytes).filter(|byte| !byte.is_ascii_whitespace());
    // FNV-1a.
    let found = bytes.fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    assert_eq!(SW_DRAFT, found, "set SW_DRAFT to {found:#010x} in include/shim.h and src/raw.rs");
}

#[test]
fn forbidden_types_do_not_occur() {
    let code = code();
    for word in code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        let forbidden =
            ["size_t", "bool", "_Bool", "enum", "long", "va_list", "int", "unsigned", "union", "wchar_t"];
        assert!(!forbidden.contains(&word), "{word}");
    }
}
