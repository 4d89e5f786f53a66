//! Tests gathered tables of every format, and one that is larger than memory should be.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{Plan, bits, chain, graph, ids, parts};
use shardwright_graph::{Asset, Graph, Weight, WeightBytes, WeightData, WeightQuantisation};
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::Table;
use shardwright_vocabulary::{DType, ErrorKind, WeightFormat};

/// Creates a table of this format with arbitrary bytes, since every stored integer is legal.
fn table(asset: &Asset, format: WeightFormat) -> Asset {
    let planned = asset.table.planned(format).unwrap();
    let noise = |count: usize| (0..count).map(|index| (index as u32).wrapping_mul(2_654_435_761) >> 13);
    let data = match planned.dtype {
        // Integers have any bits, and floats have moderate size.
        dtype if dtype.raw_range().is_some() => {
            noise(planned.data.length()).map(|value| value as u8).collect()
        }
        dtype => noise(planned.data.length() / dtype.bytes() as usize)
            .flat_map(|value| {
                let value = (value % 1000) as f32 / 300.0 - 1.5;
                match dtype {
                    DType::F32 => value.to_le_bytes().to_vec(),
                    DType::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
                    _ => half::bf16::from_f32(value).to_le_bytes().to_vec(),
                }
            })
            .collect(),
    };
    let quantisation = planned.quantisation.as_ref().map(|base| {
        let scales = noise(base.scales.length() / base.scale_dtype.bytes() as usize).flat_map(|value| {
            let scale = (1 + value % 50) as f32 / 1000.0;
            match base.scale_dtype {
                DType::F16 => half::f16::from_f32(scale).to_le_bytes().to_vec(),
                _ => scale.to_le_bytes().to_vec(),
            }
        });
        WeightQuantisation { scales: WeightData::from_vec(scales.collect()), ..base.clone() }
    });
    let table = Weight { data: WeightData::from_vec(data), quantisation, ..planned };
    Asset { table, ..asset.clone() }
}

/// Returns the table with the same values in f32.
fn decoded(asset: &Asset) -> Asset {
    let mut values = vec![f32::NAN; asset.table.row_width()];
    let mut bytes = Vec::new();
    for row in 0..asset.table.rows() {
        assert!(asset.table.decode_row(row, &mut values));
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
    let table = Weight {
        dtype: DType::F32,
        data: WeightData::from_vec(bytes),
        quantisation: None,
        ..asset.table.clone()
    };
    Asset { table, ..asset.clone() }
}

fn logits(graph: &Graph, tokens: &[u32]) -> Vec<u32> {
    let mut session = chain(graph, &Plan::default()).session().unwrap();
    session.append(tokens).unwrap();
    bits(session.logits().unwrap())
}

#[test]
fn rows_of_any_format_are_its_exact_values() {
    let float = graph(&Spec::gemma4());
    assert_eq!(float.assets.len(), 2);
    let tokens = ids(20, float.vocabulary);
    let mut seen = Vec::new();
    for &format in WeightFormat::MADE {
        let stored = Graph {
            assets: float.assets.iter().map(|asset| table(asset, format)).collect(),
            ..float.clone()
        };
        let plain = Graph { assets: stored.assets.iter().map(decoded).collect(), ..float.clone() };
        let actual = logits(&stored, &tokens);
        assert_eq!(actual, logits(&plain, &tokens), "{format}");
        assert!(!seen.contains(&actual), "{format} gives the logits of another format");
        seen.push(actual);
        let described = stored.assets[0].to_table().described();
        assert_eq!(described.quantisation.is_some(), format.is_quantised());
        let text = serde_json::to_string(&described).unwrap();
        assert_eq!(serde_json::from_str::<Table<()>>(&text).unwrap(), described);
    }
}

struct Mapped(memmap2::Mmap);

impl WeightBytes for Mapped {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A byte source that only returns copies.
struct Copied {
    bytes: Vec<u8>,
    copies: AtomicUsize,
}

impl WeightBytes for Copied {
    fn bytes(&self) -> &[u8] {
        panic!("bytes of a table that is to be read row by row")
    }

    fn length(&self) -> usize {
        self.bytes.len()
    }

    fn copy(&self, offset: usize, into: &mut [u8]) -> bool {
        self.copies.fetch_add(1, Ordering::Relaxed);
        into.copy_from_slice(&self.bytes[offset..][..into.len()]);
        true
    }
}

/// No page of the tables, including their scales, is mapped, even in a long session.
#[test]
fn rows_of_tables_are_copied() {
    let mut graph = graph(&Spec::gemma4());
    let tokens = ids(30, graph.vocabulary);
    let mut copied = Vec::new();
    let stored: Vec<Asset> =
        graph.assets.iter().map(|asset| table(asset, WeightFormat::W8PerChannel)).collect();
    graph.assets = stored.clone();
    let expected = logits(&graph, &tokens);
    for (asset, base) in graph.assets.iter_mut().zip(stored) {
        let mut watched = |data: &WeightData| {
            let bytes = data.bytes().to_vec();
            let source = Arc::new(Copied { bytes, copies: AtomicUsize::new(0) });
            copied.push(source.clone());
            WeightData::new(source, 0, data.length()).unwrap()
        };
        let data = watched(&base.table.data);
        let quantisation = base.table.quantisation.clone().unwrap();
        let scales = watched(&quantisation.scales);
        let quantisation = Some(WeightQuantisation { scales, ..quantisation });
        *asset = Asset { table: Weight { data, quantisation, ..base.table.clone() }, ..base };
    }
    assert_eq!(copied.len(), 4);
    let mut session = parts(&graph, &Plan::default()).chain().unwrap().session().unwrap();
    session.append(&tokens[..23]).unwrap();
    // One token at a time gives the same result.
    for token in &tokens[23..] {
        session.append(&[*token]).unwrap();
    }
    assert_eq!(bits(session.logits().unwrap()), expected);
    for source in &copied {
        assert_eq!(source.copies.load(Ordering::Relaxed), 30);
    }
}

#[test]
fn a_value_of_a_table_that_is_not_finite_is_named() {
    let mut graph = graph(&Spec::gemma4());
    let table = &mut graph.assets[1].table;
    let (name, width) = (table.name.clone(), table.row_width());
    assert_eq!(table.dtype, DType::Bf16);
    let mut bytes = table.data.bytes().to_vec();
    bytes[2 * (7 * width + 3)..][..2].copy_from_slice(&half::bf16::NAN.to_le_bytes());
    table.data = WeightData::from_vec(bytes);
    let mut session = chain(&graph, &Plan::default()).session().unwrap();
    session.append(&[5, 6]).unwrap();
    let error = session.append(&[7]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let expected = format!("weight `{name}`: row 7, column 3: expected a finite value, got NaN");
    assert_eq!(error.to_string(), expected);
    assert!(error.help().is_some());
}

/// Maps an empty file of this length.
fn sparse(length: u64) -> WeightData {
    let file: File = tempfile::tempfile().unwrap();
    file.set_len(length).unwrap();
    // SAFETY: the file has no name and no other writer.
    let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
    WeightData::new(Arc::new(Mapped(map)), 0, length as usize).unwrap()
}

/// Returns the resident bytes of mapped files.
fn resident_file_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssFile:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// The per-layer table of a model of two billion parameters has 4.7 GB in bf16. Only the needed
/// rows may be read.
#[test]
fn a_table_is_never_read_whole() {
    // With this many rows, the narrow tables of the smallest model are as large.
    const ENTRIES: u64 = 64 << 20;
    let float = graph(&Spec::gemma4());
    for format in [WeightFormat::Bf16, WeightFormat::W4Block32] {
        let mut graph = float.clone();
        let mut bytes = 0;
        for asset in &mut graph.assets {
            let shape = vec![ENTRIES, asset.width()];
            let planned = Weight { shape, ..asset.table.clone() }.planned(format).unwrap();
            let quantisation = planned.quantisation.as_ref().map(|base| WeightQuantisation {
                scales: sparse(base.scales.length() as u64),
                ..base.clone()
            });
            bytes += planned.bytes();
            asset.table = Weight { data: sparse(planned.data.length() as u64), quantisation, ..planned };
        }
        let before = resident_file_bytes();
        let mut session = parts(&graph, &Plan::default()).chain().unwrap().session().unwrap();
        session.append(&ids(60, ENTRIES)).unwrap();
        let read = resident_file_bytes().saturating_sub(before);
        assert!(bytes > 1 << 30, "{bytes}");
        assert!(read < 64 << 20, "{read} bytes of {bytes} were read");
    }
}
