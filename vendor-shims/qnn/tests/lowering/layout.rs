//! Tests of the sizes and offsets of the vendor's structs, as observed at the interface on x86-64.
//! They are valid on aarch64 too.

use shardwright_shim_qnn::ffi::*;
use std::mem::{offset_of, size_of};

/// Checks size and offsets of a struct against the required values.
macro_rules! layout {
    ($struct:ty, $size:literal $(, $($field:ident).+ = $offset:literal)* $(,)?) => {
        assert_eq!(size_of::<$struct>(), $size, "size of {}", stringify!($struct));
        $(assert_eq!(
            offset_of!($struct, $($field).+), $offset,
            "offset of {} in {}", stringify!($($field).+), stringify!($struct)
        );)*
    };
}

#[test]
fn encodings_have_the_librarys_layout() {
    layout!(Scalar, 16, data_type = 0, value = 8);
    layout!(ScaleOffset, 8, scale = 0, offset = 4);
    layout!(FloatScaleOffset, 8, scale = 0, offset = 4);
    layout!(BitWidthScaleOffset, 12, bits = 0, scale = 4, offset = 8);
    layout!(AxisScaleOffset, 16, axis = 0, count = 4, scale_offsets = 8);
    layout!(BitWidthAxisScaleOffset, 32, bits = 0, axis = 4, count = 8, scales = 16, offsets = 24);
    layout!(BlockEncoding, 16, extents = 0, scale_offsets = 8);
    layout!(FloatBlock, 16, extents = 0, scale_offsets = 8);
    layout!(BitWidthFloatBlock, 24, bits = 0, extents = 8, scale_offsets = 16);
    layout!(
        BlockwiseExpansion,
        40,
        axis = 0,
        scale_offsets = 8,
        blocks_per_axis = 16,
        multiple_bits = 20,
        multiple_storage = 24,
        multiples = 32
    );
    layout!(QuantiseParams, 40, definition = 0, encoding = 4, value = 8);
}

#[test]
fn tensors_and_operations_have_the_librarys_layout() {
    layout!(
        TensorV1,
        112,
        id = 0,
        name = 8,
        kind = 16,
        data_format = 20,
        data_type = 24,
        quantise = 32,
        rank = 72,
        dims = 80,
        memory_kind = 88,
        memory = 96
    );
    layout!(RawBuffer, 16, data = 0, size = 8);
    layout!(MemoryHandleOrBuffer, 16, buffer = 0, handle = 0);
    layout!(Tensor, 144, version = 0, v1 = 8, second = 120);
    layout!(Param, 160, kind = 0, name = 8, value = 16);
    layout!(
        OpConfigV1,
        72,
        name = 0,
        package = 8,
        op = 16,
        param_count = 24,
        params = 32,
        input_count = 40,
        inputs = 48,
        output_count = 56,
        outputs = 64
    );
    layout!(OpConfig, 80, version = 0, v1 = 8);
    layout!(OperationName, 24, package = 0, name = 8, target = 16);
    layout!(
        MemoryDescriptor,
        48,
        rank = 0,
        dims = 8,
        shape_config = 16,
        data_type = 24,
        memory_kind = 28,
        fd = 32,
        data = 40
    );
}

#[test]
fn configs_have_the_librarys_layout() {
    layout!(BackendConfig, 16, option = 0, value = 8);
    layout!(DeviceConfig, 16, option = 0, value = 8);
    layout!(ContextConfig, 16, option = 0, value = 8);
    layout!(GraphConfig, 16, option = 0, value = 8);
    layout!(GraphCustomConfig, 56, option = 0, value = 8);
    layout!(Optimisation, 8, kind = 0, value = 4);
    layout!(FinalizeKey, 24, key = 0, value = 8);
    layout!(ContextCustomConfig, 24, option = 0, value = 8);
    // The struct grew between two versions, and the wrong one silently generates code for another
    // chip.
    layout!(DeviceCustomConfig12, 12, option = 0, first = 4, second = 8);
    layout!(DeviceCustomConfig16, 16, option = 0, first = 8, second = 12);
}

#[test]
fn votes_have_the_librarys_layout() {
    layout!(Infrastructure, 32, kind = 0, create = 8, destroy = 16, set = 24);
    layout!(PowerConfig, 68, option = 0, value = 4);
    layout!(Corners, 12, least = 0, target = 4, most = 8);
    layout!(
        Clocks,
        64,
        client = 0,
        set_scaling = 4,
        scaling = 8,
        mode = 12,
        set_sleep_latency = 16,
        sleep_latency = 20,
        set_sleep_disable = 24,
        sleep_disable = 28,
        set_bus = 32,
        bus = 36,
        set_core = 48,
        core = 52
    );
}

#[test]
fn what_the_library_hands_out_has_its_layout() {
    layout!(Provider, 48, backend_id = 0, name = 8, api.core = 16, api.backend = 28, table = 40);
    layout!(SystemProvider, 40, backend_id = 0, name = 8, version = 16, table = 32);
    layout!(EventData, 24, kind = 0, unit = 4, value = 8, name = 16);
    layout!(
        BinaryInfo,
        144,
        version = 0,
        v3.backend_id = 8,
        v3.build_id = 16,
        v3.core = 24,
        v3.backend = 36,
        v3.soc_version = 48,
        v3.blob_version = 56,
        v3.blob_bytes = 72,
        v3.graph_count = 96,
        v3.graphs = 104,
        v3.metadata_bytes = 120,
        v3.metadata = 128,
        v3.soc_model = 136
    );
    layout!(
        GraphInfo,
        80,
        version = 0,
        v3.common.name = 8,
        v3.common.input_count = 16,
        v3.common.inputs = 24,
        v3.common.output_count = 32,
        v3.common.outputs = 40,
        v3.blob_info_bytes = 64,
        v3.blob_info = 72
    );
    layout!(
        GraphBlobInfo,
        112,
        spill_bytes = 8,
        vtcm_bytes = 16,
        level = 20,
        dlbc = 24,
        hvx_threads = 32,
        second_version = 40,
        io_bytes = 72,
        constant_bytes = 88,
        shared_bytes = 104
    );
    layout!(ContextMetadata, 8, version = 0, dsp_arch = 4);
}

#[test]
fn functions_are_read_from_their_slots() {
    let slot = |name| {
        let found = Functions::SLOTS.iter().find(|(_, known)| *known == name);
        found.unwrap_or_else(|| panic!("{name} is not read")).0
    };
    for (name, expected) in [
        ("backend_create", 1),
        ("backend_get_build_id", 4),
        ("backend_validate_op_config", 7),
        ("context_create", 9),
        ("context_get_binary", 12),
        ("context_create_from_binary", 13),
        ("graph_create", 15),
        ("graph_add_node", 18),
        ("graph_finalize", 19),
        ("graph_retrieve", 20),
        ("graph_execute", 21),
        ("tensor_create_graph_tensor", 24),
        ("log_create", 25),
        ("profile_create", 28),
        ("profile_get_events", 30),
        ("profile_get_sub_events", 31),
        ("profile_get_event_data", 32),
        ("profile_free", 34),
        ("mem_register", 35),
        ("device_create", 40),
        ("device_free", 43),
        ("error_get_message", 48),
    ] {
        assert_eq!(slot(name), expected, "{name}");
    }
    let nothing = [std::ptr::null(); 64];
    // SAFETY: 64 slots, all null, which a slot may be.
    let Err((slot, name)) = (unsafe { Functions::read(nothing.as_ptr()) }) else {
        panic!("null is no function")
    };
    assert_eq!((slot, name), (1, "backend_create"));
}
