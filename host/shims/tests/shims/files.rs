//! Tests of work orders and artefacts as files. They have one canonical encoding, and are safe to
//! read from any source.

use std::path::Path;

use crate::common::{Shims, decoder, decoder_weights, doubling, quantised, quantised_weights, seal};
use proptest::prelude::*;
use shardwright_graph::{Weight, WeightData};
use shardwright_shims::{
    Artefact, ArtefactDestination, Heads, ShimError, ShownEntry, WorkOrder, WorkOrderBuilder, WorkOrderTables,
};
use shardwright_vocabulary::{DType, EntryKind, Error, ErrorClass, ErrorKind, Flag};

fn builder(weights: &[Weight]) -> WorkOrderBuilder<'_> {
    WorkOrderBuilder::new(weights)
        .entry(&quantised(EntryKind::Prefill, 4, 4))
        .unwrap()
        .entry(&quantised(EntryKind::Decode, 1, 4))
        .unwrap()
        .flag(Flag { name: "opt".to_owned(), value: "3".to_owned() })
        .option("threads", "2")
}

/// Returns the bytes of a work order, and the length of its head.
fn bytes() -> (Vec<u8>, usize) {
    let directory = tempfile::tempdir().unwrap();
    let order = builder(&quantised_weights()).write(directory.path()).unwrap();
    let bytes = std::fs::read(order.path()).unwrap();
    let head = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) as usize;
    (bytes, head)
}

fn open(bytes: &[u8]) -> Result<WorkOrder, Error> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    WorkOrder::open(file.path())
}

#[test]
fn a_work_order_is_one_file_named_by_its_content() {
    let directory = tempfile::tempdir().unwrap();
    let weights = quantised_weights();
    let order = builder(&weights).write(directory.path()).unwrap();
    let name = order.name();
    assert_eq!(order.path(), directory.path().join(format!("{name}.swo")));
    assert_eq!(builder(&weights).write(directory.path()).unwrap().name(), name);
    assert_eq!(builder(&weights).temporary().unwrap().name(), name);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else is left behind");
    assert_ne!(builder(&weights).option("threads", "4").temporary().unwrap().name(), name);

    let read = WorkOrder::open(order.path()).unwrap();
    assert_eq!(read.head(), order.head());
    // Two entries share one set of weights, each of which starts on a page.
    assert_eq!(read.head().weights.len(), 4);
    for (index, weight) in weights.iter().enumerate() {
        assert_eq!(read.weight_bytes(index), weight.data.bytes());
        assert_eq!(read.weight_bytes(index).as_ptr() as usize % 4096, 0);
        let scales = weight.quantisation.as_ref().map_or(&[][..], |existing| existing.scales.bytes());
        assert_eq!(read.scale_bytes(index), scales);
        assert!(scales.is_empty() || (read.scale_bytes(index).as_ptr() as usize).is_multiple_of(4096));
    }
    assert!(read.weight_bytes(4).is_empty() && read.scale_bytes(4).is_empty());
    let interfaces = read.interfaces().unwrap();
    let hidden = interfaces[1].port("hidden").unwrap();
    assert_eq!(hidden.encoding.unwrap().element, DType::U16);
    assert_eq!(interfaces[0].port("layer.0.k").unwrap().direction, shardwright_shims::Direction::State);
    assert_eq!(interfaces[0].name, "prefill_4@8");
}

#[test]
fn the_tables_say_what_the_graph_says() {
    use shardwright_shim_abi::raw::*;
    use std::ffi::CStr;
    let order = builder(&quantised_weights()).temporary().unwrap();
    let tables = WorkOrderTables::new(&order).unwrap();
    // SAFETY: the tables are complete, terminated and alive. The counts belong to their arrays.
    unsafe {
        let text = |pointer| CStr::from_ptr(pointer).to_str().unwrap();
        let shown = &*tables.as_ptr();
        assert_eq!(text(shown.name), order.name());
        assert_eq!(
            (shown.entry_count, shown.weight_count, shown.flag_count, shown.option_count),
            (2, 4, 1, 1)
        );
        let entry = &**shown.entries.add(1);
        let graph = &order.head().entries[1];
        assert_eq!((text(entry.name), entry.kind, entry.rows), ("decode_1@8", SW_ENTRY_DECODE, 1));
        assert_eq!(entry.node_count as usize, graph.nodes.len());
        for (index, node) in graph.nodes.iter().enumerate() {
            let shown = &**entry.nodes.add(index);
            assert_eq!((text(shown.name), shown.op), (node.name.as_str(), node.op.number()));
            assert_eq!(shown.layer, 0);
            let attributes = node.op.attributes();
            assert_eq!(shown.attribute_count as usize, attributes.len());
            for (place, attribute) in attributes.iter().enumerate() {
                assert_eq!(text((**shown.attributes.add(place)).name), attribute.name);
            }
        }
        let hidden = &**entry.inputs;
        assert_eq!((hidden.dtype, hidden.scale, hidden.zero_point), (SW_DTYPE_U16, 0.125, 32768));
        let slots = &**entry.inputs.add(2);
        assert_eq!((slots.role, slots.index), (SW_ROLE_SLOTS, 8));
        let state = &**entry.inputs.add(4);
        assert_eq!((state.role, text(state.name), state.index), (SW_ROLE_STATE, "layer.0.v", 1));
        // A weight has the same pointer in every entry and in the list.
        let constant = |entry: &SwEntry| (**entry.constants.add(1)).weight;
        assert_eq!(constant(entry), constant(&**shown.entries));
        assert!((0..4).any(|index| *shown.weights.add(index) == constant(entry)));
        let q = &*constant(entry);
        assert_eq!((text(q.part), q.dtype, q.length), ("q", SW_DTYPE_I8, 16));
        let scales = &*q.quantisation;
        assert_eq!((scales.kind, scales.axis, scales.bits), (SW_QUANTISATION_PER_CHANNEL, 0, 8));
        assert_eq!((scales.scale_dtype, scales.scale_count), (SW_DTYPE_F32, 4));
        assert_eq!(scales.scales.cast::<f32>().add(3).read(), 2.0);
        let k = &*(**entry.constants.add(2)).weight;
        assert_eq!((text(k.part), k.dtype, k.length), ("k", SW_DTYPE_I4, 4));
        let scales = &*k.quantisation;
        assert_eq!((scales.kind, scales.axis, scales.block), (SW_QUANTISATION_PER_BLOCK, 1, 2));
        assert_eq!((scales.scale_dtype, scales.scale_count, scales.bits), (SW_DTYPE_F16, 4, 4));
        assert_eq!(*scales.zero_points, 1);
        let norm = &*(**entry.constants).weight;
        assert!(norm.quantisation.is_null());
        let tensor = &**entry.tensors;
        assert_eq!((text(tensor.name), (*tensor.quantisation).bits), ("hidden", 16));
    }
}

#[test]
fn every_flipped_bit_of_a_file_is_noticed() {
    let (bytes, _) = bytes();
    for position in (0..bytes.len()).step_by(if cfg!(miri) { 4001 } else { 61 }).chain(0..64) {
        let mut damaged = bytes.clone();
        damaged[position] ^= 1 << (position % 8);
        let error = open(&damaged).unwrap_err();
        assert!(error.help().is_some(), "{position}: {error}");
    }
    for length in (0..bytes.len()).step_by(997).chain(0..80).chain([bytes.len() - 1]) {
        let error = open(&bytes[..length]).unwrap_err();
        let is_of_length = error.message().starts_with("expected ") && error.message().contains("bytes, got");
        assert!(is_of_length || error.message().contains("wrong magic"), "{length}: {error}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    let expected = format!("expected {} bytes, got {}", bytes.len(), longer.len());
    assert_eq!(open(&longer).unwrap_err().message(), expected);
}

#[test]
fn prefix_faults_are_distinguished() {
    let (bytes, _) = bytes();
    let with = |offset: usize, value: &[u8]| {
        let mut changed = bytes.clone();
        changed[offset..offset + value.len()].copy_from_slice(value);
        open(&changed).unwrap_err()
    };
    for (offset, value, text) in [
        (0, &b"X"[..], "not a work order: wrong magic at offset 0"),
        (8, &[9], "at offset 8, got 9"),
        (12, &[1, 0], "expected a page size of 4096 at offset 12, got 1"),
        (16, &u64::MAX.to_le_bytes(), "bytes at offset 16, got 18446744073709551615"),
        (16, &(60_u64 << 20).to_le_bytes(), "bytes, got"),
        (24, &u64::MAX.to_le_bytes(), "expected 18446744073709551615 bytes, got"),
        (32, &[0; 32], "damaged: expected SHA-256 0000"),
    ] {
        let error = with(offset, value);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.place().is_some() && error.message().contains(text), "no `{text}` in {error}");
    }
    let absent = WorkOrder::open(Path::new("/absent")).unwrap_err();
    assert_eq!((absent.is_not_found(), absent.place()), (true, Some("/absent")));
    let folder = WorkOrder::open(Path::new("/")).unwrap_err();
    assert_eq!((folder.kind(), folder.place()), (ErrorKind::Invalid, Some("/")));
}

/// Without memory to map a file, the file is not at fault.
#[test]
fn a_shortage_of_the_system_is_named_and_not_the_file() {
    let absent = Artefact::open(Path::new("/absent")).unwrap_err();
    assert_eq!(absent.help(), Some("check the path and its permissions"));
    assert_eq!(Error::from(ShimError::artefact(absent)).kind(), ErrorKind::Shim);
    for (source, words, kind) in [
        (std::io::ErrorKind::OutOfMemory, "limit of memory", ErrorKind::Memory),
        (std::io::ErrorKind::StorageFull, "free space", ErrorKind::Resource),
    ] {
        let error = ShimError::artefact(Error::from(std::io::Error::from(source)));
        assert_eq!((error.class(), error.is_of_shortage()), (Some(ErrorClass::CorruptArtefact), true));
        let error = Error::from(error);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.help().is_some_and(|help| help.contains(words)), "{error:?}");
    }
}

/// Opens a work order with a changed head, around which everything is consistent again.
fn with_head(change: impl FnOnce(&mut serde_json::Value)) -> Result<WorkOrder, Error> {
    let (bytes, length) = bytes();
    let mut head: serde_json::Value = serde_json::from_slice(&bytes[64..64 + length]).unwrap();
    change(&mut head);
    // If possible the typed head is used, for the canonical order of members. Otherwise the head is
    // used as it is.
    let head = match serde_json::from_value::<shardwright_shims::WorkOrderHead>(head.clone()) {
        Ok(typed) => serde_json::to_vec(&typed).unwrap(),
        Err(_) => head.to_string().into_bytes(),
    };
    open(&rebuilt(&head, &bytes[(64 + length).next_multiple_of(4096)..]))
}

fn rebuilt(head: &[u8], weights: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes.extend_from_slice(head);
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    bytes.extend_from_slice(weights);
    seal(&mut bytes, b"SWORDER\0", head.len() as u64);
    bytes
}

#[test]
fn heads_that_contradict_themselves_are_refused() {
    type Change = fn(&mut serde_json::Value);
    let cases: &[(Change, &str)] = &[
        (|h| h["entries"] = serde_json::json!([]), "no entries"),
        (|h| h["entries"][0]["nodes"][0]["inputs"][0] = 999.into(), "an operand refers to tensor 999"),
        (|h| h["entries"][0]["nodes"][0]["output"] = 999.into(), "a result refers to tensor 999"),
        (|h| h["entries"][0]["inputs"][0][0] = 999.into(), "an input refers to tensor 999"),
        (|h| h["entries"][0]["outputs"][0][0] = 999.into(), "an output refers to tensor 999"),
        (|h| h["entries"][0]["nodes"].as_array_mut().unwrap().reverse(), "before it is computed"),
        (|h| h["entries"][0]["nodes"][1]["output"] = h["entries"][0]["nodes"][0]["output"].clone(), "`q`"),
        (|h| h["entries"][0]["nodes"][1]["name"] = "norm".into(), "two nodes are named `norm`"),
        (|h| h["entries"][0]["nodes"][1]["name"] = "".into(), "empty"),
        (|h| h["entries"][0]["nodes"][0]["width"] = 3.into(), "groups of 3"),
        (|h| h["entries"][0]["tensors"][0]["shape"] = serde_json::json!([4, 5]), "node `norm`"),
        (|h| h["entries"][0]["tensors"][0]["shape"] = serde_json::json!([u64::MAX, 4]), "too large"),
        (
            |h| h["entries"][0]["tensors"][0]["shape"] = serde_json::json!([1, 1, 1, 1, 1, 1, 4]),
            "axes of a tensor",
        ),
        (|h| h["entries"][0]["tensors"][0]["name"] = "slots".into(), "two tensors are named `slots`"),
        (|h| h["entries"][0]["tensors"][0]["name"] = "a\0b".into(), "NUL"),
        (|h| h["entries"][0]["tensors"][5]["weight"] = 99.into(), "weight 99 of 4"),
        (|h| h["entries"][0]["tensors"][5]["weight"] = 1.into(), "does not match weight"),
        (|h| h["entries"][0]["inputs"][1][0] = 0.into(), "has more than one value"),
        (|h| h["entries"][0]["point"]["rows"] = 0.into(), "0 rows"),
        (|h| h["entries"][0]["point"]["rows"] = 99.into(), "99 rows"),
        (|h| h["entries"][1]["point"] = h["entries"][0]["point"].clone(), "two entries"),
        (|h| h["entries"][0]["states"][1]["id"] = 0.into(), "listed twice"),
        (|h| h["entries"][0]["states"] = serde_json::json!([]), "has no tensor or state"),
        (|h| h["entries"][0]["nodes"][2]["theta"] = serde_json::json!(1e300), "expected f32"),
        (|h| h["weights"][0]["length"] = 8.into(), "cannot have 8 bytes"),
        (|h| h["weights"][0]["shape"] = serde_json::json!([u64::MAX, u64::MAX]), "weight `norm`"),
        (|h| h["weights"].as_array_mut().unwrap().truncate(3), "weight 3 of 3"),
        (|h| h["weights"][1]["quantisation"] = serde_json::Value::Null, "the invalid quantisation None"),
        (
            |h| h["weights"][0]["quantisation"] = h["weights"][1]["quantisation"].clone(),
            "has the invalid quantisation",
        ),
        (|h| h["weights"][1]["quantisation"]["scale_dtype"] = "i8".into(), "has the invalid quantisation"),
        (|h| h["weights"][1]["quantisation"]["zero_point"] = 4711.into(), "has the invalid quantisation"),
        (
            |h| h["entries"][0]["tensors"][0]["affine"]["zero_point"] = (-1).into(),
            "contradicts its quantisation",
        ),
        (
            |h| h["entries"][0]["tensors"][0]["affine"] = serde_json::Value::Null,
            "contradicts its quantisation",
        ),
        (|h| h["flags"][0]["value"] = "x".repeat(2000).into(), "longer than"),
        (|h| h["surprise"] = 1.into(), "surprise"),
        (|h| *h = serde_json::json!("text"), "head"),
    ];
    for (change, expected) in cases {
        let error = match with_head(change) {
            Err(error) => error,
            Ok(_) => panic!("accepted: {expected}"),
        };
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        assert!(error.help().is_some());
    }
    assert!(with_head(|_| {}).is_ok());
}

#[test]
fn only_the_canonical_spelling_is_read() {
    let (bytes, length) = bytes();
    let weights = bytes[(64 + length).next_multiple_of(4096)..].to_vec();
    let head = &bytes[64..64 + length];
    assert!(open(&rebuilt(head, &weights)).is_ok());
    let mut spaced = head.to_vec();
    spaced.push(b' ');
    assert!(open(&rebuilt(&spaced, &weights)).unwrap_err().to_string().contains("canonical"));
    let mut dirty = rebuilt(head, &weights);
    dirty[64 + length] = 1;
    seal(&mut dirty, b"SWORDER\0", length as u64);
    assert!(open(&dirty).unwrap_err().to_string().contains("padding"));
    let mut longer = weights;
    longer.extend_from_slice(&[0; 4096]);
    assert!(open(&rebuilt(head, &longer)).unwrap_err().to_string().contains("the weights end at"));
}

#[test]
fn an_impossible_work_order_is_refused_before_anything_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let weights = decoder_weights();
    let quantised = quantised_weights();
    let missing = WorkOrderBuilder::new(&weights[..2]).entry(&decoder(EntryKind::Decode, 1, 4));
    let missing = missing.map(|_| ()).unwrap_err();
    assert!(missing.place().is_some_and(|place| place.starts_with("entry `")), "{missing}");
    let empty = WorkOrderBuilder::new(&weights).write(directory.path()).unwrap_err();
    assert_eq!((empty.place(), empty.message()), (Some("work order"), "no entries"));
    let gone = directory.path().join("gone");
    let nowhere = builder(&quantised).write(&gone).unwrap_err();
    assert_eq!((nowhere.is_not_found(), nowhere.place()), (true, gone.to_str()));
    let mut infinite = doubling();
    infinite.nodes[0].op = shardwright_graph::Op::MulScalar { value: f32::INFINITY };
    let infinite = WorkOrderBuilder::new(&[]).entry(&infinite).unwrap().write(directory.path());
    assert!(infinite.unwrap_err().to_string().contains("attribute `value` has the invalid value inf"));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    let mut named = doubling();
    named.nodes[0].name = "a\0b".to_owned();
    let text = shardwright_shims::EntryTables::new(&ShownEntry::of(&named, &[])).map(|_| ());
    assert!(text.unwrap_err().to_string().contains("contains a NUL byte"));
}

#[test]
fn weights_that_are_not_finite_are_refused_by_their_place() {
    let directory = tempfile::tempdir().unwrap();
    let entry = decoder(EntryKind::Decode, 1, 4);
    let refused = |weights: &[Weight], quantised_entry: bool| {
        let builder = match quantised_entry {
            true => builder(weights),
            false => WorkOrderBuilder::new(weights).entry(&entry).unwrap(),
        };
        let error = builder.write(directory.path()).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.help().is_some(), "{error}");
        error.to_string()
    };
    let mut weights = decoder_weights();
    // Row 2, column 1 of `q`, and row 1, column 3 of `k`.
    set(&mut weights[1].data, 4 * 9, &f32::NEG_INFINITY.to_le_bytes());
    let error = refused(&weights, false);
    assert_eq!(error, "weight `q`: row 2, column 1: expected a finite value, got -inf");
    let mut weights = decoder_weights();
    set(&mut weights[2].data, 2 * 7, &0x7fc0_u16.to_le_bytes());
    let error = refused(&weights, false);
    assert_eq!(error, "weight `k`: row 1, column 3: expected a finite value, got NaN");
    let mut weights = quantised_weights();
    let scales = &mut weights[2].quantisation.as_mut().unwrap().scales;
    set(scales, 2 * 3, &0x7c00_u16.to_le_bytes());
    let error = refused(&weights, true);
    assert_eq!(error, "weight `k`: scale 3: expected a finite scale, got inf");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

fn set(data: &mut WeightData, at: usize, value: &[u8]) {
    let mut bytes = data.bytes().to_vec();
    bytes[at..at + value.len()].copy_from_slice(value);
    *data = WeightData::from_vec(bytes);
}

#[test]
fn artefacts_are_checked_like_work_orders() {
    let shims = Shims::new();
    shims.template();
    let instance = shims.registry().open("template-c", "a", &[]).unwrap();
    let order = WorkOrderBuilder::new(&[]).entry(&doubling()).unwrap().temporary().unwrap();
    let artefact =
        instance.compile("cpu", &order, ArtefactDestination::Directory(shims.path()), &mut ()).unwrap();
    let bytes = std::fs::read(artefact.path()).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let open = |bytes: &[u8]| {
        std::fs::write(file.path(), bytes).unwrap();
        Artefact::open(file.path())
    };
    assert!(open(&bytes).is_ok());
    for position in (0..bytes.len()).step_by(13) {
        let mut damaged = bytes.clone();
        damaged[position] ^= 1 << (position % 8);
        let error = open(&damaged).unwrap_err();
        assert!(error.help().is_some(), "{error}");
    }
    for length in (0..bytes.len()).step_by(101) {
        assert!(open(&bytes[..length]).is_err());
    }
    // A work order is not an artefact.
    let directory = tempfile::tempdir().unwrap();
    let order = builder(&quantised_weights()).write(directory.path()).unwrap();
    let other = Artefact::open(order.path()).unwrap_err();
    assert!(other.message().contains("not an artefact: wrong magic"), "{other}");
    // Lengths that contradict the file, under a correct hash.
    let length = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) as usize;
    let start = bytes.len() - length;
    for (member, value) in [("payload_length", u64::MAX), ("head_length", 1 << 40), ("payload_length", 1)] {
        let mut head: serde_json::Value = serde_json::from_slice(&bytes[start..]).unwrap();
        head[member] = value.into();
        let typed: shardwright_shims::ArtefactHead = serde_json::from_value(head).unwrap();
        let head = serde_json::to_vec(&typed).unwrap();
        let mut forged = bytes[..start].to_vec();
        forged.extend_from_slice(&head);
        seal(&mut forged, b"SWARTEF\0", head.len() as u64);
        let error = open(&forged).unwrap_err();
        assert!(error.message().starts_with("head at offset 64: "), "{error}");
    }
}

#[test]
fn heads_stored_apart_are_exact_or_refused() {
    let shims = Shims::new();
    shims.template();
    let instance = shims.registry().open("template-c", "a", &[]).unwrap();
    let order = WorkOrderBuilder::new(&[]).entry(&doubling()).unwrap().temporary().unwrap();
    let artefact = instance.compile("cpu", &order, ArtefactDestination::Temporary, &mut ()).unwrap();
    let heads = Heads::of(&artefact);
    let (bytes, path) = (heads.to_bytes().unwrap(), Path::new("heads"));
    assert_eq!(Heads::parse(path, &bytes).unwrap(), heads);
    let refused = |bytes: &[u8], word: &str| {
        let error = Heads::parse(path, bytes).unwrap_err();
        assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, Some("heads")));
        assert_eq!(error.help(), Some("compile the bundle again"));
        assert!(error.message().contains(word), "no `{word}` in {error}");
    };
    refused(b"", "empty");
    refused(b"{}", "missing field");
    refused(&[b" ", &bytes[..]].concat(), "canonical");
    refused(&[&bytes[..], b"x"].concat(), "bytes of the shim's head");
    for length in 0..bytes.len() {
        refused(&bytes[..length], "");
    }
    let mut long = heads;
    long.shim_head = vec![0; (64 << 10) + 1];
    long.head.head_length = long.shim_head.len() as u64;
    refused(&long.to_bytes().unwrap(), "bytes of the shim's head");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Any change to the head that keeps the hash correct results in an error or a valid work
    /// order, never in a panic.
    #[test]
    fn hostile_heads_are_read_safely(
        position in 0_usize..10_000, byte in any::<u8>(), cut in 0_usize..64, repeat in 0_usize..4,
    ) {
        let (bytes, length) = bytes();
        let mut head = bytes[64..64 + length].to_vec();
        let position = position % head.len();
        for step in 0..=repeat {
            let at = (position + step * 7) % head.len();
            head[at] = if step % 2 == 0 { byte } else { byte % 10 + b'0' };
        }
        let end = (position + cut).min(head.len());
        if cut > 48 {
            head.drain(position..end);
        }
        let weights = &bytes[(64 + length).next_multiple_of(4096)..];
        if let Ok(order) = open(&rebuilt(&head, weights)) {
            WorkOrderTables::new(&order).unwrap();
            // Writing the work order that was read results in the same head.
            prop_assert_eq!(serde_json::to_vec(order.head()).unwrap(), head);
        }
    }

    #[test]
    fn random_bytes_are_no_work_order(bytes in proptest::collection::vec(any::<u8>(), 0..9000)) {
        let mut bytes = bytes;
        prop_assert!(open(&bytes).is_err());
        if bytes.len() > 64 {
            let length = bytes.len() as u64 - 64;
            seal(&mut bytes, b"SWORDER\0", length);
            prop_assert!(open(&bytes).is_err());
        }
    }
}
