//! The models that Google's client compiles here: a fully-connected layer with an addition, and a
//! decoder block in A16W8.

use crate::flatbuffer::{Field, Table, buffer};

const FLOAT32: u8 = 0;
const INT32: u8 = 2;
const INT16: u8 = 7;
const INT8: u8 = 9;

const ADD: u8 = 0;
const FULLY_CONNECTED: u8 = 9;
const MUL: u8 = 18;
const RESHAPE: u8 = 22;
const SOFTMAX: u8 = 25;
const TRANSPOSE: u8 = 39;
const BATCH_MATMUL: u8 = 126;
const GELU: u8 = 150;

/// The number of each operation's options table in the union.
const OPTIONS: [(u8, u8); 8] = [
    (ADD, 11),
    (FULLY_CONNECTED, 8),
    (MUL, 21),
    (RESHAPE, 17),
    (SOFTMAX, 9),
    (TRANSPOSE, 26),
    (BATCH_MATMUL, 101),
    (GELU, 116),
];

/// A model file under construction.
#[derive(Default)]
pub struct Builder {
    tensors: Vec<Table>,
    buffers: Vec<Vec<u8>>,
    operators: Vec<Table>,
    codes: Vec<u8>,
}

impl Builder {
    pub fn new() -> Builder {
        // Buffer 0 must be empty.
        Builder { buffers: vec![Vec::new()], ..Builder::default() }
    }

    fn tensor(&mut self, kind: u8, shape: &[i32], scales: &[f32], data: Option<Vec<u8>>) -> i32 {
        self.affine(kind, shape, (scales, 0), data)
    }

    /// Adds a tensor whose values have scales and one zero point.
    pub fn affine(
        &mut self,
        kind: u8,
        shape: &[i32],
        (scales, zero): (&[f32], i32),
        data: Option<Vec<u8>>,
    ) -> i32 {
        let index = self.tensors.len();
        let buffer = data.map_or(0, |data| {
            self.buffers.push(data);
            self.buffers.len() - 1
        });
        let mut tensor = Table::new()
            .with(0, Field::Ints(shape.to_vec()))
            .with(1, Field::U8(kind))
            .with(2, Field::U32(buffer as u32))
            .with(3, Field::Text(format!("t{index}")));
        if !scales.is_empty() {
            let quantisation = Table::new()
                .with(2, Field::Floats(scales.to_vec()))
                .with(3, Field::Longs(vec![i64::from(zero); scales.len()]))
                .with(6, Field::I32(0));
            tensor = tensor.with(4, Field::Table(quantisation));
        }
        self.tensors.push(tensor);
        index as i32
    }

    fn operator(&mut self, code: u8, inputs: &[i32], output: i32, options: Table) {
        let union = OPTIONS.iter().find(|(known, _)| *known == code).expect("known").1;
        self.operator_with(code, inputs, output, Some((union, options)));
    }

    /// Adds an operator, with the number of its options' table in the union and the table.
    pub fn operator_with(&mut self, code: u8, inputs: &[i32], output: i32, options: Option<(u8, Table)>) {
        let place = self.codes.iter().position(|known| *known == code).unwrap_or_else(|| {
            self.codes.push(code);
            self.codes.len() - 1
        });
        let mut operator = Table::new()
            .with(0, Field::U32(place as u32))
            .with(1, Field::Ints(inputs.to_vec()))
            .with(2, Field::Ints(vec![output]));
        if let Some((union, options)) = options {
            operator = operator.with(3, Field::U8(union)).with(4, Field::Table(options));
        }
        self.operators.push(operator);
    }

    pub fn finish(self, inputs: &[i32], outputs: &[i32]) -> Vec<u8> {
        let codes = self.codes.iter().map(|code| {
            Table::new()
                .with(0, Field::U8((*code).min(127)))
                .with(2, Field::I32(1))
                .with(3, Field::I32(i32::from(*code)))
        });
        let subgraph = Table::new()
            .with(0, Field::Tables(self.tensors))
            .with(1, Field::Ints(inputs.to_vec()))
            .with(2, Field::Ints(outputs.to_vec()))
            .with(3, Field::Tables(self.operators))
            .with(4, Field::Text("main".to_owned()));
        let buffers = self.buffers.into_iter().map(|data| {
            if data.is_empty() { Table::new() } else { Table::new().with(0, Field::Aligned(data)) }
        });
        let model = Table::new()
            .with(0, Field::U32(3))
            .with(1, Field::Tables(codes.collect()))
            .with(2, Field::Tables(vec![subgraph]))
            .with(3, Field::Text("shardwright".to_owned()))
            .with(4, Field::Tables(buffers.collect()));
        buffer(Some(b"TFL3"), &model)
    }
}

/// Returns small numbers that differ from position to position.
fn pattern(count: usize, seed: u32) -> impl Iterator<Item = i32> {
    (0..count as u32).map(move |at| {
        (at.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503)) >> 24) as i32 - 128
    })
}

/// Returns a model in f32: [1,32] by [16,32] plus a bias, added to a second input [1,16].
pub fn chain() -> Vec<u8> {
    let mut model = Builder::new();
    let real = |count, seed| -> Vec<u8> {
        pattern(count, seed).flat_map(|x| (x as f32 / 128.0).to_le_bytes()).collect()
    };
    let x = model.tensor(FLOAT32, &[1, 32], &[], None);
    let y = model.tensor(FLOAT32, &[1, 16], &[], None);
    let weight = model.tensor(FLOAT32, &[16, 32], &[], Some(real(512, 1)));
    let bias = model.tensor(FLOAT32, &[16], &[], Some(real(16, 2)));
    let middle = model.tensor(FLOAT32, &[1, 16], &[], None);
    let out = model.tensor(FLOAT32, &[1, 16], &[], None);
    model.operator(FULLY_CONNECTED, &[x, weight, bias], middle, Table::new().with(0, Field::U8(0)));
    model.operator(ADD, &[middle, y], out, Table::new().with(0, Field::U8(0)));
    model.finish(&[x, y], &[out])
}

/// Returns a decoder block of 17 operations in 16-bit activations and 8-bit weights with
/// per-channel scales. It has 4 rows, width 64 and a mask as the second input.
pub fn block() -> Vec<u8> {
    const WIDTH: i32 = 64;
    const BIASED: u32 = 4;
    let mut model = Builder::new();
    let step = [1.0 / 4096.0];
    let x = model.tensor(INT16, &[1, 4, WIDTH], &step, None);
    let mask = model.tensor(INT16, &[1, 4, 4], &step, None);
    let mut seed = 0;
    let mut linear = |model: &mut Builder, from: i32| {
        seed += 1;
        let scales: Vec<f32> = (0..WIDTH).map(|channel| 0.001 + 0.00001 * channel as f32).collect();
        let data = pattern((WIDTH * WIDTH) as usize, seed).map(|x| x.max(-127) as i8 as u8).collect();
        let weight = model.tensor(INT8, &[WIDTH, WIDTH], &scales, Some(data));
        let out = model.tensor(INT16, &[1, 4, WIDTH], &step, None);
        // One layer has a bias. For the others the client makes a bias of zeros.
        let bias = if seed == BIASED {
            let data = pattern(WIDTH as usize, 9).flat_map(|x| (x * 1000).to_le_bytes()).collect();
            let scales: Vec<f32> = scales.iter().map(|scale| scale * step[0]).collect();
            model.tensor(INT32, &[WIDTH], &scales, Some(data))
        } else {
            -1
        };
        let options = Table::new().with(0, Field::U8(0)).with(2, Field::U8(1));
        model.operator(FULLY_CONNECTED, &[from, weight, bias], out, options);
        out
    };
    let ints = |model: &mut Builder, values: &[i32]| {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        model.tensor(INT32, &[values.len() as i32], &[], Some(data))
    };
    let query = linear(&mut model, x);
    let key = linear(&mut model, x);
    let value = linear(&mut model, x);
    let scores = model.tensor(INT16, &[1, 4, 4], &step, None);
    model.operator(
        BATCH_MATMUL,
        &[query, key],
        scores,
        Table::new().with(0, Field::U8(0)).with(1, Field::U8(1)),
    );
    let masked = model.tensor(INT16, &[1, 4, 4], &step, None);
    model.operator(ADD, &[scores, mask], masked, Table::new());
    let weights = model.tensor(INT16, &[1, 4, 4], &[1.0 / 32768.0], None);
    // The option is a float, written as the number with its bits.
    model.operator(SOFTMAX, &[masked], weights, Table::new().with(0, Field::U32(1f32.to_bits())));
    let mixed = model.tensor(INT16, &[1, 4, WIDTH], &step, None);
    model.operator(
        BATCH_MATMUL,
        &[weights, value],
        mixed,
        Table::new().with(0, Field::U8(0)).with(1, Field::U8(0)),
    );
    let split_shape = ints(&mut model, &[1, 4, 2, 32]);
    let split = model.tensor(INT16, &[1, 4, 2, 32], &step, None);
    model.operator(RESHAPE, &[mixed, split_shape], split, Table::new());
    let order = ints(&mut model, &[0, 2, 1, 3]);
    let heads = model.tensor(INT16, &[1, 2, 4, 32], &step, None);
    model.operator(TRANSPOSE, &[split, order], heads, Table::new());
    let back = model.tensor(INT16, &[1, 4, 2, 32], &step, None);
    model.operator(TRANSPOSE, &[heads, order], back, Table::new());
    let joined_shape = ints(&mut model, &[1, 4, WIDTH]);
    let joined = model.tensor(INT16, &[1, 4, WIDTH], &step, None);
    model.operator(RESHAPE, &[back, joined_shape], joined, Table::new());
    let attended = linear(&mut model, joined);
    let residual = model.tensor(INT16, &[1, 4, WIDTH], &step, None);
    model.operator(ADD, &[attended, x], residual, Table::new());
    let up = linear(&mut model, residual);
    let activated = model.tensor(INT16, &[1, 4, WIDTH], &step, None);
    model.operator(GELU, &[up], activated, Table::new().with(0, Field::U8(1)));
    let gated = model.tensor(INT16, &[1, 4, WIDTH], &step, None);
    model.operator(MUL, &[activated, up], gated, Table::new());
    let out = model.tensor(INT16, &[1, 4, WIDTH], &step, None);
    model.operator(ADD, &[gated, residual], out, Table::new());
    model.finish(&[x, mask], &[out])
}
