//! Tests of numbers and names that are part of a contract. They are appended to, never changed.

use std::collections::HashSet;

use shardwright_graph::{
    AssetId, Attention, AttributeValue, AxialRope, ComponentKind, GridAxis, KeySource, Keys, Mask, Op, Pass,
    RelativeAttention, Role, Rope, StateId,
};
use shardwright_vocabulary::{DType, EntryKind, OpKind};

include!("../support/every_op.rs");

pub(crate) fn every_role() -> Vec<Role> {
    let mask = |keys| Role::Mask(Mask { keys, window: 7, causal: true });
    vec![
        Role::Positions,
        Role::Slots { capacity: 4224 },
        Role::RotaryCos(ROPE),
        Role::RotarySin(ROPE),
        mask(Keys::State { capacity: 9 }),
        mask(Keys::StateAndRows { capacity: 9 }),
        mask(Keys::Rows),
        Role::Pooling,
        Role::Gathered { asset: AssetId(1) },
        Role::Features,
        Role::Grid { axis: GridAxis::Column },
        Role::Grid { axis: GridAxis::Row },
        Role::Valid { rate: 4 },
        Role::AxialCos(AxialRope { head_dim: 8, theta: 100.0 }),
        Role::AxialSin(AxialRope { head_dim: 8, theta: 100.0 }),
        Role::GatheredByGrid { asset: AssetId(2), axis: GridAxis::Row },
        Role::Hidden,
        Role::PerLayer { first: 3, layers: 2 },
        Role::Logits,
        Role::Embedding,
        Role::Tap { name: "layer.3".to_owned() },
        Role::SoftRows,
        Role::State { state: StateId(5) },
        Role::StateRows { state: StateId(6) },
    ]
}

#[test]
fn operations_keep_numbers_names_and_attributes() {
    let wanted = "\
1 linear v1
2 rms-norm v1 width eps weight_offset
3 rope v1 head_dim theta rotated_pairs factor
4 attention v1 heads kv_heads head_dim scale softcap window causal keys
5 gelu v1
6 silu v1
7 softcap v1 cap
8 softmax v1
9 state-update v1
10 l2-normalize v1
11 dynamic-linear v2 block
12 rotate v1 head_dim
13 layer-norm v1 eps
14 axial-rope v1 head_dim theta
15 relative-attention v1 heads head_dim softcap
16 convolution v1 kernel stride padding
17 depthwise-convolution v1
18 clamp v1
19 sigmoid v1
20 glu v1
21 mean-rows v1 rows
64 add v1
65 sub v1
66 mul v1
67 div v1
68 add-scalar v1 value
69 mul-scalar v1 value
70 neg v1
71 exp v1
72 tanh v1
73 sqrt v1
74 rsqrt v1
75 reciprocal v1
76 reduce-sum v1
77 reduce-mean v1
78 reduce-max v1
79 mat-mul v1 transpose_b
80 reshape v1 shape
81 transpose v1 perm
82 slice v1 axis start end
83 concat v1 axis
84 max-scalar v1 value
85 round v1
86 convert v1
87 max v1
88 min v1
";
    let mut found = String::new();
    for op in every_op() {
        found += &format!("{} {} v{}", op.number(), op.name(), op.version());
        op.attributes().iter().for_each(|attribute| found += &format!(" {}", attribute.name));
        found += "\n";
        assert_eq!(op.is_semantic(), op.number() < 64);
    }
    assert_eq!(found, wanted);
    let numbers: HashSet<u32> = every_op().iter().map(Op::number).collect();
    let names: HashSet<&str> = every_op().iter().map(Op::name).collect();
    assert_eq!((numbers.len(), names.len()), (every_op().len(), every_op().len()));
}

#[test]
fn attributes_keep_their_kinds_of_value() {
    let text = |op: Op| {
        let value = |value: AttributeValue| match value {
            AttributeValue::Integer(value) => value.to_string(),
            AttributeValue::Float(value) => format!("{value:?}"),
            AttributeValue::Integers(values) => format!("{values:?}"),
            AttributeValue::Text(text) => format!("{text:?}"),
        };
        op.attributes().into_iter().map(|a| value(a.value)).collect::<Vec<_>>().join(" ")
    };
    let scale = f64::from(0.1_f32);
    assert_eq!(text(Op::Attention(ATTENTION)), format!("4 2 8 {scale:?} 50.0 512 1 \"state\""));
    let rows = Attention { keys: KeySource::Rows, causal: false, ..ATTENTION };
    assert!(text(Op::Attention(rows)).ends_with("0 \"rows\""));
    assert_eq!(text(Op::Rope(ROPE)), "8 10000.0 3 8.0");
    assert_eq!(text(Op::Reshape { shape: vec![2, 3] }), "[2, 3]");
    assert_eq!(text(Op::Slice { axis: 1, start: 2, end: 3 }), "1 2 3");
    assert_eq!(text(Op::MatMul { transpose_b: true }), "1");
}

#[test]
fn roles_keep_numbers_and_names() {
    let wanted = [
        (1, "positions"),
        (2, "slots"),
        (3, "rotary-cos"),
        (4, "rotary-sin"),
        (5, "mask"),
        (5, "mask"),
        (5, "mask"),
        (6, "pooling"),
        (7, "gathered"),
        (8, "features"),
        (9, "grid"),
        (9, "grid"),
        (10, "valid"),
        (11, "axial-cos"),
        (12, "axial-sin"),
        (13, "gathered-by-grid"),
        (16, "hidden"),
        (17, "per-layer"),
        (18, "logits"),
        (19, "embedding"),
        (20, "tap"),
        (21, "soft-rows"),
        (32, "state"),
        (33, "state-rows"),
    ];
    let found: Vec<(u32, &str)> = every_role().iter().map(|role| (role.number(), role.name())).collect();
    assert_eq!(found, wanted);
    for role in every_role() {
        assert_eq!(role.is_step_input(), role.number() < 16);
    }
}

#[test]
fn element_types_keep_numbers_names_and_sizes() {
    let wanted = [
        (1, "f32", 4),
        (2, "f16", 2),
        (3, "bf16", 2),
        (4, "i32", 4),
        (5, "i16", 2),
        (6, "u16", 2),
        (7, "i8", 1),
        (8, "u8", 1),
        (9, "i64", 8),
        (10, "i4", 1),
        (11, "i2", 1),
    ];
    let found: Vec<(u32, &str, u64)> =
        DType::ALL.iter().map(|dtype| (dtype.number(), dtype.name(), dtype.bytes())).collect();
    assert_eq!(found, wanted);
    assert_eq!(DType::ALL.iter().filter(|dtype| dtype.is_float()).count(), 3);
}

#[test]
fn components_and_entry_kinds_keep_their_names() {
    let names: Vec<&str> = ComponentKind::ALL.iter().map(|kind| kind.name()).collect();
    let step = ["embed", "per-layer-input", "decoder", "head", "pooling"];
    let picture = ["vision-embed", "vision-tower", "vision-projector"];
    let clip = ["audio-embed", "audio-tower", "audio-projector"];
    assert_eq!(names, [&step[..], &picture, &clip].concat());
    for (pass, names) in [(Pass::Step, &step[..]), (Pass::Picture, &picture), (Pass::Clip, &clip)] {
        for name in names {
            assert_eq!(ComponentKind::from_name(name).map(ComponentKind::pass), Some(pass));
        }
        assert!(pass.layered().is_layered() && pass.layered().pass() == pass);
    }
    assert_eq!(Pass::ALL.iter().map(|pass| pass.name()).collect::<Vec<_>>(), ["step", "picture", "clip"]);
    for &kind in ComponentKind::ALL {
        assert_eq!(ComponentKind::from_name(kind.name()), Some(kind));
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
    }
    assert_eq!(ComponentKind::from_name("tail"), None);
    for (kind, name) in
        [(EntryKind::Prefill, "prefill"), (EntryKind::Decode, "decode"), (EntryKind::Encode, "encode")]
    {
        assert_eq!(kind.name(), name);
        assert_eq!(serde_json::to_value(kind).unwrap(), name);
    }
}
