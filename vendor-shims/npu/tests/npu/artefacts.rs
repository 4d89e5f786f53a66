//! Artefacts of a fictional shim are written, read back and damaged. Also tests the bindings of
//! their ports.

use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use shardwright_shim_abi::raw::*;
use shardwright_shim_abi::{Compatibility, Direction, Error, ErrorClass, MemoryKinds};
use shardwright_shim_npu::artefact::{
    self, Descriptor, Format, MAX_ENTRIES, MAX_PORTS, Opened, Outline, PAGE, ReadHead, check_hash, hash,
    loads,
};
use shardwright_shim_npu::port::{Port, PortKind, bindings, check_ports, check_run};
use shardwright_shim_testing::assert_damage_is_found;

const FORMAT: Format = Format {
    magic: b"SWTESTED",
    head: "shardwright-tested-artefact\n",
    number: 3,
    shim: "tested",
    payload: "a payload",
    foreign_help: "there is none",
};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Head {
    format: u32,
    entries: u32,
    hash: String,
}

impl artefact::Head for Head {
    fn entries(&self) -> u32 {
        self.entries
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    name: String,
    rows: u64,
    ports: Vec<Port<u32>>,
}

impl artefact::Entry for Entry {
    type Place = u32;

    fn outline(&self) -> Outline<'_, u32> {
        Outline { name: &self.name, rows: self.rows, context: 0, ports: &self.ports }
    }
}

fn head(payload: &[u8]) -> Head {
    Head { format: FORMAT.number, entries: 1, hash: hash(payload) }
}

fn entry(name: &str) -> Entry {
    let ports = vec![port("x", PortKind::Input, SW_ROLE_HIDDEN, SW_DTYPE_U16)];
    Entry { name: name.to_owned(), rows: 3, ports }
}

fn written_of(head: Head, entries: Vec<Entry>, payload: &[u8]) -> Result<Vec<u8>, Error> {
    let mut bytes = FORMAT.prefix(&Descriptor { head, entries }, payload.len() as u64)?;
    bytes.extend(payload);
    Ok(bytes)
}

fn written(payload: &[u8]) -> Vec<u8> {
    written_of(head(payload), vec![entry("e")], payload).expect("small")
}

fn read(bytes: &[u8]) -> Result<Opened<'_, Head, Entry>, Error> {
    let opened = FORMAT.open::<Head, Entry>(bytes)?;
    check_hash(opened.payload, &opened.descriptor.head.hash, "the payload", opened.payload_at)?;
    Ok(opened)
}

#[test]
fn every_flipped_bit_and_every_cut_is_found() {
    let payload: Vec<u8> = (0..3000u32).map(|index| index as u8).collect();
    let bytes = written(&payload);
    let opened = read(&bytes).expect("undamaged");
    assert_eq!((opened.payload, opened.payload_at % PAGE), (payload.as_slice(), 0));
    assert_damage_is_found(&bytes, |bytes| read(bytes).is_ok());
}

#[test]
fn another_kind_another_format_and_damage_are_three_answers() {
    let bytes = written(&[1]);
    for foreign in [&b"somebody else's"[..], b""] {
        let refused = read(foreign).expect_err("foreign");
        assert_eq!(refused.class, ErrorClass::IncompatibleArtefact);
        assert_eq!(refused.detail_of("help"), Some("there is none"));
        assert!(refused.to_string().contains("tested shim"), "{refused}");
    }
    let mut newer = bytes.clone();
    newer[8] = 9;
    let refused = read(&newer).expect_err("newer");
    assert!(refused.class == ErrorClass::IncompatibleArtefact && refused.message.contains("format 9"));
    let refused = read(&bytes[..40]).expect_err("cut short");
    assert_eq!((refused.class, refused.detail_of("offset")), (ErrorClass::CorruptArtefact, Some("40")));

    let head = head(&[]);
    let text = FORMAT.head_bytes(&head).expect("small");
    let of = |bytes: &[u8]| FORMAT.read_head::<Head>(bytes);
    assert_eq!(of(&text).expect("a head").known(&FORMAT), Ok(&head));
    let foreign = of(b"shardwright-other").expect("a head");
    assert_eq!(foreign, ReadHead::Foreign);
    assert!(matches!(foreign.known(&FORMAT), Err(Compatibility::NotMine(_))));
    let other = FORMAT.head_bytes(&Head { format: 9, ..head }).expect("small");
    let other = of(&other).expect("a head");
    assert_eq!(other, ReadHead::OtherFormat(9));
    assert!(matches!(other.known(&FORMAT), Err(Compatibility::Unsupported(reason)) if reason.contains('9')));
    assert!(of(&text[..text.len() - 1]).is_err_and(|error| error.class == ErrorClass::CorruptArtefact));

    assert_eq!(loads(Compatibility::Recompile(String::new()), String::new), Ok(()));
    let refused = loads(Compatibility::Unsupported("other chip".to_owned()), || "go away".to_owned());
    let refused = refused.expect_err("another chip");
    assert_eq!(refused.class, ErrorClass::IncompatibleArtefact);
    assert_eq!(refused.detail_of("help"), Some("go away"));
}

fn port(name: &str, kind: PortKind, role: u32, dtype: u32) -> Port<u32> {
    Port {
        name: name.to_owned(),
        kind,
        role,
        index: 0,
        dtype,
        shape: vec![3, 2],
        scale_bits: 0.5f64.to_bits(),
        zero_point: 7,
        place: 0,
    }
}

#[test]
fn entries_and_ports_that_cannot_be_are_refused() {
    let limit = |entries: Vec<Entry>| {
        let refused = written_of(head(&[]), entries, &[]).expect_err("too many");
        assert_eq!(refused.class, ErrorClass::ResourceLimit);
        refused.detail_of("limit").expect("a limit").to_owned()
    };
    let with = |change: fn(&mut Entry)| {
        let mut entry = entry("e");
        change(&mut entry);
        entry
    };
    assert_eq!(limit(vec![with(|entry| entry.ports = vec![entry.ports[0].clone(); MAX_PORTS + 1])]), "ports");
    assert_eq!(limit(vec![entry("e"); MAX_ENTRIES + 1]), "entries");

    for (stated, entries, part) in [
        (0, vec![], "0 entries"),
        (2, vec![entry("e")], "1 entries, expected 2 as in the head"),
        (2, vec![entry("e"), entry("e")], "two entries"),
        (1, vec![with(|entry| entry.rows = 0)], "no rows"),
        (1, vec![entry("")], "a name of 0 bytes"),
        (1, vec![entry("a\0")], "a name of 2 bytes"),
        (1, vec![with(|entry| entry.ports[0].dtype = 99)], "element type 99"),
    ] {
        let bytes = written_of(Head { entries: stated, ..head(&[]) }, entries, &[]).expect("within limits");
        let refused = read(&bytes).expect_err(part);
        assert_eq!(refused.class, ErrorClass::CorruptArtefact, "{refused}");
        assert_eq!(refused.detail_of("offset"), Some(PAGE.to_string().as_str()));
        assert!(refused.to_string().contains(part), "`{part}` not in `{refused}`");
    }

    let sound = port("x", PortKind::Input, SW_ROLE_HIDDEN, SW_DTYPE_U16);
    assert_eq!(check_ports("e", std::slice::from_ref(&sound)), Ok(()));
    type Change = fn(&mut Port<u32>);
    let changes: [(&str, Change); 7] = [
        ("a name of 0 bytes", |port| port.name.clear()),
        ("element type 99", |port| port.dtype = 99),
        ("of element type", |port| port.shape = vec![1 << 40, 1 << 40]),
        ("of element type", |port| port.shape = vec![0]),
        ("of element type", |port| port.shape = vec![1; 9]),
        ("scale NaN", |port| port.scale_bits = f64::NAN.to_bits()),
        ("scale 0", |port| port.scale_bits = 0),
    ];
    for (part, change) in changes {
        let mut changed = sound.clone();
        change(&mut changed);
        let refused = check_ports("e", &[changed]).expect_err(part);
        assert!(refused.contains(part), "`{part}` not in `{refused}`");
    }
    assert!(check_ports("e", &[sound.clone(), sound]).expect_err("twice").contains("twice"));
}

#[test]
fn runs_bind_what_ports_say() {
    let ports = [
        port("x", PortKind::of(false, SW_ROLE_HIDDEN), SW_ROLE_HIDDEN, SW_DTYPE_F16),
        port("k", PortKind::of(false, SW_ROLE_STATE), SW_ROLE_STATE, SW_DTYPE_U16),
        port("k", PortKind::of(true, SW_ROLE_STATE_ROWS), SW_ROLE_STATE_ROWS, SW_DTYPE_U16),
    ];
    let bound = bindings(&ports, MemoryKinds::HOST, |_| 64);
    let summary: Vec<_> =
        bound.iter().map(|one| (one.direction, one.update, one.bytes, one.alignment)).collect();
    assert_eq!(
        summary,
        [
            (Direction::Input, SW_UPDATE_NONE, 12, 64),
            (Direction::StateRead, SW_UPDATE_BY_RUNTIME, 12, 64),
            (Direction::Output, SW_UPDATE_NONE, 12, 64),
        ]
    );
    assert_eq!((bound[0].scale, bound[0].zero_point), (0.5, 7));
    assert_eq!(bindings(&ports[..2], MemoryKinds::HOST, |_| 1)[1].update, SW_UPDATE_NONE, "nothing new");

    assert!(ports[0].needs_blank_rows(3) && !ports[0].needs_blank_rows(1) && !ports[1].needs_blank_rows(3));
    let mut copy = [9u8; 12];
    ports[0].copy_rows(3, 1, &[5; 12], &mut copy);
    assert_eq!(copy, [5, 5, 5, 5, 0, 0, 0, 0, 0, 0, 0, 0]);

    assert_eq!(check_run("e", 3, 3, 4, 4), Ok(()));
    for (bound, rows) in [(2, 1), (3, 0), (3, 5)] {
        let refused = check_run("e", 3, bound, 4, rows).expect_err("a wrong number");
        assert_eq!(refused.class, ErrorClass::InvalidArgument);
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_refused_without_a_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..9000), is_ours: bool) {
        if is_ours && bytes.len() >= 16 {
            bytes[..8].copy_from_slice(FORMAT.magic);
            bytes[8..16].copy_from_slice(&u64::from(FORMAT.number).to_le_bytes());
        }
        prop_assert!(read(&bytes).is_err());
        let mut head = FORMAT.head.as_bytes().to_vec();
        head.extend(&bytes);
        prop_assert!(!matches!(FORMAT.read_head::<Head>(&head), Ok(ReadHead::Known(_))));
    }
}
