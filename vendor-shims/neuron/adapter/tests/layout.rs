//! Checks layouts and tables against values observed at the boundary of a real client.

use std::collections::BTreeSet;
use std::mem::{align_of, offset_of, size_of};

use shardwright_neuron_adapter::{
    FUNCTIONS, Functions, OperandType, PerChannelQuantParams, RuntimeVersion, SymmPerChannelQuantParams,
    extension, operand, operation, result, version,
};

#[test]
fn structs_have_the_layouts_a_real_client_fills() {
    let kind = [
        offset_of!(OperandType, kind),
        offset_of!(OperandType, dimension_count),
        offset_of!(OperandType, dimensions),
        offset_of!(OperandType, scale),
        offset_of!(OperandType, zero_point),
        size_of::<OperandType>(),
    ];
    assert_eq!(kind, [0, 4, 8, 16, 20, 24]);
    let symmetric = [
        offset_of!(SymmPerChannelQuantParams, channel_dimension),
        offset_of!(SymmPerChannelQuantParams, scale_count),
        offset_of!(SymmPerChannelQuantParams, scales),
        size_of::<SymmPerChannelQuantParams>(),
    ];
    assert_eq!(symmetric, [0, 4, 8, 16]);
    let general = [
        offset_of!(PerChannelQuantParams, channel_dimension),
        offset_of!(PerChannelQuantParams, scale_count),
        offset_of!(PerChannelQuantParams, scales),
        offset_of!(PerChannelQuantParams, zero_point_count),
        offset_of!(PerChannelQuantParams, zero_points),
        size_of::<PerChannelQuantParams>(),
    ];
    assert_eq!(general, [0, 4, 8, 16, 24, 32]);
    assert_eq!((size_of::<RuntimeVersion>(), align_of::<RuntimeVersion>()), (3, 1));
}

#[test]
fn versions_are_ordered_as_numbers() {
    assert!(RuntimeVersion::new(8, 2, 23) < version::ASKED_FOR_SUPPORTED_OPERATIONS);
    assert!(RuntimeVersion::new(9, 0, 3) > version::FOUR_BITS_PER_CHANNEL);
    assert!(RuntimeVersion::new(10, 0, 0) > RuntimeVersion::new(9, 255, 255));
    let version = RuntimeVersion::new(8, 2, 28);
    assert_eq!((RuntimeVersion::parse("8.2.28"), version.to_string().as_str()), (Some(version), "8.2.28"));
    for text in ["", "8", "8.2", "8.2.28.1", "8.2.256", "8.2.-1", "8.+2.1", "8.2.a"] {
        assert_eq!(RuntimeVersion::parse(text), None, "{text}");
    }
}

#[test]
fn string_operands_are_those_of_the_real_client() {
    // Lengths that the client passed.
    for (name, bytes) in
        [(extension::RMS_NORMALIZATION, 46), (extension::SQUARED_DIFFERENCE, 47), (extension::UNPACK, 31)]
    {
        let operand = extension::string_operand(name).expect("short");
        assert_eq!(operand.len(), bytes);
        assert_eq!(extension::string_of(&operand), Some(name));
    }
    let operand = extension::string_operand("ab").expect("short");
    assert_eq!(operand, b"\x06string\x02\0\0\0ab\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(extension::string_operand(&"x".repeat(101)), None);
    for damaged in [&operand[..12], b"\x05string", b"", b"\x06string\xff\xff\xff\xffab"] {
        assert_eq!(extension::string_of(damaged), None);
    }
}

#[test]
fn numbers_are_told_once_and_have_names() {
    let kinds: BTreeSet<_> = operand::KINDS.iter().map(|(number, ..)| number).collect();
    assert_eq!(kinds.len(), operand::KINDS.len());
    let operations: BTreeSet<_> = operation::OPERATIONS.iter().map(|(number, _)| number).collect();
    assert_eq!(operations.len(), operation::OPERATIONS.len());
    let functions: BTreeSet<_> = FUNCTIONS.iter().map(|function| function.name).collect();
    assert_eq!(functions.len(), FUNCTIONS.len());
    assert_eq!(result::name(result::UNMAPPABLE), Some("NEURON_UNMAPPABLE"));
    assert_eq!(result::name(result::DEAD_OBJECT), Some("NEURON_DEAD_OBJECT"));
    assert_eq!((result::name(16), result::name(-1)), (None, None));
    assert_eq!(operand::name(9014), Some("EXT_TENSOR_INT32_SYMM_PER_CHANNEL"));
    assert_eq!(operand::element_bytes(operand::TENSOR_QUANT16_SYMM), Some(2));
    assert_eq!((operand::element_bytes(operand::MODEL), operand::element_bytes(9009)), (None, None));
    assert_eq!(operation::name(102), Some("BATCH_MATMUL"));
    for (number, ..) in operand::KINDS {
        assert!(!(operand::is_per_tensor(*number) && operand::is_per_channel(*number)));
        assert!(
            !(operand::is_scalar(*number)
                && operand::name(*number).is_some_and(|name| name.contains("TENSOR")))
        );
    }
}

#[test]
fn functions_are_bound_by_their_names() {
    let mut asked = Vec::new();
    // SAFETY: the lookup only returns null.
    let none = unsafe {
        Functions::bind(|name| {
            asked.push(name.to_str().expect("ASCII").to_owned());
            std::ptr::null_mut()
        })
    };
    assert_eq!(asked, FUNCTIONS.iter().map(|function| function.name).collect::<Vec<_>>());
    assert!(none.bound().iter().all(|bound| !bound));

    unsafe extern "C" fn version(version: *mut RuntimeVersion) -> i32 {
        // SAFETY: the caller passes a version.
        unsafe { version.write(RuntimeVersion::new(1, 2, 3)) };
        result::NO_ERROR
    }
    // SAFETY: the only function that the lookup returns has the signature of its name.
    let one = unsafe {
        Functions::bind(|name| match name.to_bytes() {
            b"Neuron_getVersion" => version as *mut std::ffi::c_void,
            _ => std::ptr::null_mut(),
        })
    };
    assert_eq!(one.bound().iter().filter(|bound| **bound).count(), 1);
    let mut found = RuntimeVersion::default();
    // SAFETY: the function above.
    assert_eq!(unsafe { (one.get_version.expect("bound"))(&raw mut found) }, result::NO_ERROR);
    assert_eq!(found, RuntimeVersion::new(1, 2, 3));
}

#[test]
fn what_the_known_clients_use_is_marked() {
    let of = |name: &str| *FUNCTIONS.iter().find(|function| function.name == name).expect("in the table");
    assert!(of("NeuronModel_create").is_used() && !of("Neuron_getNeuroPilotMagicNumber").is_used());
    let unused: Vec<_> = FUNCTIONS.iter().filter(|function| !function.is_used()).collect();
    assert_eq!(unused.len(), 1, "functions without a known user have no open source: {unused:?}");
}
