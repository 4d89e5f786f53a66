//! Small files of every kind, by the target that reads them: the corpus of the fuzz targets.

use super::{
    Flex, Model, adapter_cache, dla, executorch, flexbuffer, litertlm, litertlm_with, neuron_schema, record,
    simulated, trailer,
};

/// All options that the public tools of 2026 record in their code.
pub const BARE: &str = "--relax-fp32 --dla-file /build/dir/a.dla";
/// Compiler options of a published bundle, as quoted in a public report.
pub const PUBLISHED: &str = "--relax-fp32 --show-exec-plan --mdla-mlo-match-info --mdla-flash-attention-mode 0 --opt 3 --opt-footprint --opt-accuracy \
                             --gno LTS,Inception --gno-exp --gno-non-4d-tiling --fc-to-conv --mdla-broadcast-act-wgt 1 --broadcast-flow-distance 63 \
                             --mdla-set-conv-xy-split-ic-threshold 99999 --mdla-mlo --mdla-conv-exp 1 --mem-opt 3 --stable-linearize \
                             --l1-size-kb 7168 --num-mdla 4";

/// Writes an adapter cache of a version.
pub fn cache(version: [u8; 3], options: &str) -> Vec<u8> {
    adapter_cache(&dla(&[0x42; 40], &trailer(&record("adapter", version), options)))
}

/// Builds a model whose partitions were compiled with these options.
pub fn model(soc: &str, version: [u8; 3], options: &str) -> Model {
    let sdk = version.map(u32::from);
    let (first, second) = (cache(version, options), cache(version, options));
    Model {
        stamp: Some(("MediaTek".to_owned(), soc.to_owned())),
        functions: vec![
            (vec!["Partition_0".to_owned()], vec![36, 151]),
            (vec!["Partition_1".to_owned()], vec![]),
        ],
        container: neuron_schema(Some(sdk), &[("Partition_0", 2, &first), ("Partition_1", 2, &second)]),
    }
}

/// Builds a model without compiled parts.
pub fn untouched() -> Model {
    Model { stamp: None, functions: vec![(vec![], vec![9, 0, 150, 9])], container: Vec::new() }
}

/// Returns every sample: target, name, bytes.
pub fn all() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let small = simulated([8, 2, 28], "mt6989", &[1, 2, 3], "--opt 3");
    let bare = model("mt6989", [8, 2, 28], BARE).bytes();
    let simulator = Model {
        container: neuron_schema(Some([8, 2, 28]), &[("Partition_0", 2, &small)]),
        functions: vec![(vec!["Partition_0".to_owned()], vec![])],
        ..model("mt6989", [8, 2, 28], "")
    };
    let no_code = Model { container: neuron_schema(None, &[("Partition_0", 2, b"")]), ..simulator.clone() };
    let bundle = litertlm(&[
        (4, vec![], vec![1, 2, 3]),
        (3, vec![("model_type", "tf_lite_prefill_decode"), ("backend_constraint", "npu")], bare.clone()),
        (3, vec![("model_type", "tf_lite_embedder")], untouched().bytes()),
    ]);
    vec![
        ("tflite", "relax-only.tflite", bare),
        ("tflite", "published.tflite", model("mt6993", [9, 2, 1], PUBLISHED).bytes()),
        ("tflite", "untouched.tflite", untouched().bytes()),
        ("tflite", "simulator.tflite", simulator.bytes()),
        ("tflite", "no-code.tflite", no_code.bytes()),
        ("litertlm", "bundle.litertlm", bundle),
        ("litertlm", "close.litertlm", litertlm_with(1, 16, &[(3, vec![("model_type", "tf_lite_aux")], simulator.bytes())])),
        ("litertlm", "empty.litertlm", litertlm(&[])),
        ("neuron_schema", "two-partitions.bin", model("mt6989", [9, 0, 3], "--opt=3 -O2").container),
        ("blob", "adapter-cache.bin", cache([8, 2, 28], BARE)),
        ("blob", "dla.bin", dla(&[0x42; 40], &trailer(&record("adapter", [7, 3, 15]), "--relax-fp32"))),
        ("blob", "simulator.bin", small),
        ("blob", "no-record.bin", dla(&[0x42; 40], &[])),
        ("executorch", "payload.bin", executorch(2, 1, &cache([8, 2, 28], "--relax-fp32 --opt=3"))),
        (
            "flexbuffer",
            "options.bin",
            flexbuffer(2, &[("bytecode_offset", Flex::Number(1104)), ("name", Flex::Text("Partition_0".to_owned()))]),
        ),
        ("options", "published.txt", PUBLISHED.as_bytes().to_vec()),
        (
            "options",
            "quoted.txt",
            br#"--apusys-config "{ \"high_addr\": true, \"import_forever\": true }" --adapter-disable-map-fd"#.to_vec(),
        ),
    ]
}
