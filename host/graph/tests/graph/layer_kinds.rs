use shardwright_graph::layer_kinds;

use crate::support::{LayerRecipe, Recipe, toy};

#[test]
fn layers_of_equal_structure_share_a_kind() {
    let sliding = || LayerRecipe::sliding(5);
    let plain = LayerRecipe::plain;
    type Case = (&'static str, Vec<LayerRecipe>, Vec<u32>);
    let cases: Vec<Case> = vec![
        ("one layer", vec![plain()], vec![0]),
        // In a prefill the last layer that writes a state only fills it.
        ("all equal", vec![plain(), plain(), plain()], vec![0, 0, 1]),
        ("a pattern", vec![sliding(), plain(), sliding(), plain(), sliding()], vec![0, 1, 0, 1, 2]),
        (
            "shared keys, whichever the donor",
            vec![
                sliding(),
                sliding(),
                plain(),
                sliding().sharing(0),
                sliding().sharing(1),
                plain().sharing(2),
            ],
            vec![0, 0, 1, 2, 2, 3],
        ),
        (
            "another width",
            vec![plain(), LayerRecipe { inner: 16, ..plain() }, plain(), plain()],
            vec![0, 1, 0, 2],
        ),
        (
            "another theta",
            vec![plain(), LayerRecipe { theta: 5.0, ..plain() }, plain(), plain()],
            vec![0, 1, 0, 2],
        ),
    ];
    for (name, layers, wanted) in cases {
        for per_layer_width in [0, 4] {
            let kinds =
                layer_kinds(&toy(&Recipe { layers: layers.clone(), per_layer_width, ..Recipe::sharing() }))
                    .unwrap();
            assert_eq!(kinds.of_layer, wanted, "{name}");
            let first = |kind: u32| wanted.iter().position(|of| *of == kind).unwrap() as u32;
            let firsts: Vec<u32> = (0..kinds.representative.len() as u32).map(first).collect();
            assert_eq!(kinds.representative, firsts, "{name}");
        }
    }
    let encoder = layer_kinds(&toy(&Recipe::encoder())).unwrap();
    assert_eq!(encoder.of_layer, [0, 1, 0]);
}
