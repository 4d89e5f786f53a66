use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::*;

fn round_trip<T>(all: &[T])
where
    T: Copy
        + fmt::Display
        + fmt::Debug
        + FromStr<Err = UnknownName>
        + PartialEq
        + Serialize
        + serde::de::DeserializeOwned,
{
    for &value in all {
        let name = value.to_string();
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'));
        assert_eq!(name.parse::<T>().unwrap(), value);
        let json = serde_json::to_string(&value).unwrap();
        assert_eq!(json, format!("\"{name}\""));
        assert_eq!(serde_json::from_str::<T>(&json).unwrap(), value);
    }
    let error = "no-such-name".parse::<T>().unwrap_err();
    assert!(error.help().unwrap().contains(&all[0].to_string()));
}

#[test]
fn names_survive_text_and_json() {
    round_trip(Provenance::ALL);
    round_trip(GoalVerdict::ALL);
    round_trip(TargetKind::ALL);
    round_trip(WeightFormat::ALL);
    round_trip(ActivationFormat::ALL);
    round_trip(StateFormat::ALL);
    round_trip(WeightRole::ALL);
    round_trip(DType::ALL);
    round_trip(ErrorClass::ALL);
}

#[test]
fn an_unknown_word_is_quoted_in_part_only() {
    let error = "x".repeat(10_000).parse::<ErrorClass>().unwrap_err();
    assert!(error.to_string().len() < 200);
}

#[test]
fn entry_names_have_one_spelling() {
    for name in ["prefill_128@4096", "decode_1@512", "encode_256"] {
        let entry = name.parse::<EntryName>().unwrap();
        assert_eq!(entry.to_string(), name);
        let json = serde_json::to_string(&entry).unwrap();
        assert_eq!(serde_json::from_str::<EntryName>(&json).unwrap(), entry);
    }
    for name in [
        "",
        "decode",
        "decode_1",
        "decode_01@4",
        "decode_+1@4",
        "decode_0@4",
        "decode_1@0",
        "encode_4@4",
        "encode_",
        "prefill_4294967296@1",
        "warm_1@1",
    ] {
        assert!(name.parse::<EntryName>().is_err(), "{name}");
    }
}

#[test]
fn flag_schemas_say_what_they_take() {
    let schema = |values| FlagSchema {
        name: "opt".to_owned(),
        values,
        default: None,
        description: String::new(),
        stage: FlagStage::Compile,
    };
    let cases = [
        (FlagType::Switch, "true", "yes"),
        (FlagType::Integer { min: 0, max: 3 }, "3", "4"),
        (FlagType::Integer { min: -1, max: 3 }, "-1", "one"),
        (FlagType::Choice { values: vec!["lts".to_owned()] }, "lts", "LTS"),
        (FlagType::Text { max_bytes: 4 }, "abcd", "abcde"),
    ];
    for (values, good, bad) in cases {
        let schema = schema(values);
        assert_eq!(schema.accepts(good), Ok(()));
        assert!(schema.accepts(bad).is_err(), "{schema:?} took {bad}");
        let json = serde_json::to_string(&schema).unwrap();
        assert_eq!(serde_json::from_str::<FlagSchema>(&json).unwrap(), schema);
    }
}

#[test]
fn flag_verdicts_keep_their_evidence() {
    let applied = FlagVerdict::Applied { evidence: "kernel count fell from 40 to 31".to_owned() };
    for verdict in
        [applied, FlagVerdict::Recorded, FlagVerdict::Inert, FlagVerdict::Refused, FlagVerdict::Unknown]
    {
        let json = serde_json::to_string(&verdict).unwrap();
        assert!(json.contains(verdict.name()));
        assert_eq!(serde_json::from_str::<FlagVerdict>(&json).unwrap(), verdict);
        assert!(verdict.to_string().starts_with(verdict.name()));
    }
}

#[test]
fn scales_are_finite_and_positive() {
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE / 2.0] {
        assert_eq!(ScaleBits::new(bad), None, "{bad}");
        assert!(serde_json::from_str::<ScaleBits>(&bad.to_bits().to_string()).is_err());
    }
    let scale = ScaleBits::new(0.125).unwrap();
    assert_eq!(scale.get(), 0.125);
    assert_eq!(serde_json::from_str::<ScaleBits>(&scale.bits().to_string()).unwrap(), scale);
}

#[test]
fn encodings_of_floats_are_scaled_by_powers_of_two_alone() {
    assert!(Encoding::F32.is_consistent());
    assert!(!Encoding { zero_point: 1, ..Encoding::F16 }.is_consistent());
    let scale = ScaleBits::new(0.5).unwrap();
    assert!(Encoding { element: DType::U8, scale, zero_point: 255 }.is_consistent());
    assert!(!Encoding { element: DType::U8, scale, zero_point: 256 }.is_consistent());
    assert!(!Encoding { element: DType::I8, scale, zero_point: 200 }.is_consistent());
    assert!(Encoding { element: DType::F32, scale, zero_point: 0 }.is_consistent());
    let odd = ScaleBits::new(0.3).unwrap();
    assert!(!Encoding { element: DType::F32, scale: odd, zero_point: 0 }.is_consistent());
    assert_eq!(Encoding::F16.to_string(), "f16");
    assert_eq!(Encoding::F16.in_units(ScaleBits::power_of_two(4)).to_string(), "f16(scale 16)");
    assert_eq!(ScaleBits::power_of_two(-1), scale);
    assert!(scale.is_power_of_two() && !odd.is_power_of_two());
}

#[test]
fn a_tuple_answers_per_role() {
    let mut tuple = FormatTuple::uniform(WeightFormat::W4PerChannel, ActivationFormat::A16, StateFormat::A8);
    tuple.roles = vec![RoleFormat { role: WeightRole::MlpOutput, format: WeightFormat::W8PerChannel }];
    assert_eq!(tuple.weight(WeightRole::MlpOutput), WeightFormat::W8PerChannel);
    assert_eq!(tuple.weight(WeightRole::MlpInput), WeightFormat::W4PerChannel);
    assert_eq!(tuple.to_string(), "w4-per-channel[mlp-output=w8-per-channel]/a16/a8");
    assert_eq!(tuple.to_string().parse::<FormatTuple>(), Ok(tuple.clone()));
    assert_eq!("f32".parse::<FormatTuple>(), Ok(FormatTuple::F32));
    let wrong =
        ["", "w8", "f32/f32/f32/f32", "f32[head]", "f32[head=w8-per-channel", "f32[head=f16][head=f32]"];
    for text in wrong {
        assert!(text.parse::<FormatTuple>().is_err(), "{text}");
    }
    let json = serde_json::to_string(&tuple).unwrap();
    assert_eq!(serde_json::from_str::<FormatTuple>(&json).unwrap(), tuple);
}

#[test]
fn a_tuple_names_attention_in_16_bits_and_not_in_32() {
    let parsed = |text: &str| text.parse::<FormatTuple>();
    let plain = parsed("w8-per-channel/a8-dynamic/f16").unwrap();
    assert_eq!(plain.attention, AttentionFormat::F32);
    assert_eq!(parsed("w8-per-channel/a8-dynamic/f16/attention-f32").unwrap(), plain);
    assert!(!serde_json::to_string(&plain).unwrap().contains("attention"));
    for attention in [AttentionFormat::Bf16, AttentionFormat::F16] {
        let tuple = FormatTuple { attention, ..plain.clone() };
        assert_eq!(tuple.to_string(), format!("w8-per-channel/a8-dynamic/f16/attention-{attention}"));
        assert_eq!(parsed(&tuple.to_string()).unwrap(), tuple);
        let json = serde_json::to_string(&tuple).unwrap();
        assert_eq!(serde_json::from_str::<FormatTuple>(&json).unwrap(), tuple);
        let short = parsed(&format!("f32/attention-{attention}")).unwrap();
        assert_eq!(short, FormatTuple { attention, ..FormatTuple::F32 });
        // A shard has one format of attention.
        let layers = [(Segment::decoder(0, 1), &plain), (Segment::decoder(1, 2), &tuple)];
        assert_eq!(ShardFormats::of(layers), None);
        assert!(!ValueFormat::Attention(attention).is_exact());
    }
    assert!(ValueFormat::Attention(AttentionFormat::F32).is_exact());
    let unknown = parsed("f32/f32/f32/attention-f8").unwrap_err();
    assert_eq!((unknown.what, unknown.expected.as_str()), ("attention format", "f32, bf16, f16"));
    for wrong in
        ["attention-bf16", "f32/f32/f32/bf16", "f32/attention-bf16/f32/f32", "f32/f32/f32/f32/attention-bf16"]
    {
        assert!(parsed(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn limits_refuse_unknown_fields() {
    let limit = Limit::new(limit_names::OPS, 2600, Provenance::Reported);
    assert_eq!(limit.to_string(), "ops ≤ 2600 (reported)");
    let json = serde_json::to_string(&limit).unwrap();
    assert_eq!(serde_json::from_str::<Limit>(&json).unwrap(), limit);
    assert!(serde_json::from_str::<Limit>(r#"{"name":"ops","value":1,"provenance":"user","x":1}"#).is_err());
}

#[test]
fn layers_of_a_shard_may_differ_in_their_weights_alone() {
    let tuple = |text: &str| -> FormatTuple { text.parse().unwrap() };
    let (eight, four) = (tuple("w8-per-channel/a16/a8"), tuple("w4-per-channel/a16/a8"));
    let layers = |first: u32, tuples: &[&FormatTuple]| {
        ShardFormats::of(
            (first..).zip(tuples).map(|(layer, tuple)| (Segment::decoder(layer, layer + 1), *tuple)),
        )
    };
    let alike = layers(3, &[&four, &four]).unwrap();
    assert_eq!((alike.uniform(), alike.to_string()), (Some(&four), "w4-per-channel/a16/a8".to_owned()));
    let mixed = layers(3, &[&eight, &four, &four, &eight]).unwrap();
    assert_eq!(
        mixed.to_string(),
        "decoder.3-4 w8-per-channel/a16/a8, decoder.4-6 w4-per-channel/a16/a8, \
         decoder.6-7 w8-per-channel/a16/a8"
    );
    assert_eq!((mixed.uniform(), mixed.tuples().count()), (None, 3));
    assert_eq!(layers(0, &[&eight, &tuple("w4-per-channel/a16/a16")]), None);
    assert_eq!(layers(0, &[]), None);
    // Components stay separate, even in equal formats.
    let (decoder, head) = (Segment::decoder(0, 1), Segment::whole(ComponentKind::Head));
    let embed = Segment::whole(ComponentKind::Embed);
    let joined = ShardFormats::of([(embed, &eight), (decoder, &eight), (head, &four)]).unwrap();
    assert_eq!(
        joined.to_string(),
        "embed w8-per-channel/a16/a8, decoder.0-1 w8-per-channel/a16/a8, head w4-per-channel/a16/a8"
    );
    // A single tuple serialises as it did before mixed formats existed.
    let json = |formats: &ShardFormats| serde_json::to_string(formats).unwrap();
    assert_eq!(json(&alike), serde_json::to_string(&four).unwrap());
    for formats in [alike, mixed, joined] {
        assert_eq!(serde_json::from_str::<ShardFormats>(&json(&formats)).unwrap(), formats);
    }
}

#[test]
fn segments_of_a_shard_are_in_the_order_of_a_step_each_component_once() {
    use ComponentKind::{Decoder, Embed, Head, PerLayerInput};
    let whole = Segment::whole;
    let segments = |list: &[Segment]| Segments(list.to_vec());
    let all = segments(&[whole(Embed), whole(PerLayerInput), Segment::decoder(0, 35), whole(Head)]);
    assert!(all.is_consistent());
    assert_eq!(all.to_string(), "embed+per-layer-input+decoder.0-35+head");
    assert_eq!((all.layers(), all.stream_enters(35), all.stream_leaves()), ((0, 35), None, None));
    let end = segments(&[Segment::decoder(20, 35), whole(Head)]);
    assert_eq!((end.layers(), end.stream_enters(35), end.stream_leaves()), ((20, 35), Some(20), None));
    let begin = segments(&[whole(Embed), whole(PerLayerInput)]);
    assert_eq!((begin.layers(), begin.stream_enters(35), begin.stream_leaves()), ((0, 0), None, Some(0)));
    assert_eq!(Segments::from(whole(PerLayerInput)).stream_leaves(), None);
    assert_eq!(Segments::from(whole(Head)).stream_enters(35), Some(35));
    for wrong in [
        &[][..],
        &[whole(Head), Segment::decoder(0, 1)],
        &[Segment::decoder(0, 1), Segment::decoder(1, 2)],
        &[Segment::decoder(1, 1)],
        &[whole(Decoder)],
        &[Segment { component: Head, layers: (0, 1) }],
    ] {
        assert!(!segments(wrong).is_consistent(), "{wrong:?}");
    }
    let json = serde_json::to_string(&end).unwrap();
    assert_eq!(json, r#"[{"component":"decoder","layers":[20,35]},{"component":"head"}]"#);
    assert_eq!(serde_json::from_str::<Segments>(&json).unwrap(), end);
}

#[test]
fn speculation_is_told_in_a_line() {
    let known = ChosenSpeculation {
        draft: ChosenSpeculation::LOOKUP.to_owned(),
        rows: 16,
        gain_thousandths: Some(1187),
        provenance: Provenance::Modelled,
        accepted_steps: Vec::new(),
    };
    assert_eq!(known.to_string(), "lookup, up to 15 tokens a step, 1.18x expected (modelled)");
    let json = serde_json::to_string(&known).unwrap();
    assert_eq!(serde_json::from_str::<ChosenSpeculation>(&json).unwrap(), known);
    let unknown = ChosenSpeculation { gain_thousandths: None, rows: 2, ..known };
    assert_eq!(unknown.to_string(), "lookup, up to 1 tokens a step, gain not known");
}

#[test]
fn times_add_up_with_the_weaker_source() {
    let reported = TimeCost::within(2, 4, 8, Provenance::Reported);
    let measured = TimeCost::exact(10, Provenance::Measured);
    let sum = TimeCost::within(12, 14, 18, Provenance::Reported);
    assert_eq!((reported.checked_add(measured), reported.saturating_add(measured)), (Some(sum), sum));
    assert_eq!(reported.saturating_add(TimeCost::ZERO), reported);
    assert_eq!(reported.times(3), TimeCost::within(6, 12, 24, Provenance::Reported));
    assert_eq!(reported.times(0), TimeCost::exact(0, Provenance::Reported));
    // Only the slowest run exceeds 64 bits.
    let longest = TimeCost::within(1, 2, u64::MAX, Provenance::Modelled);
    assert_eq!(longest.checked_add(reported), None);
    assert_eq!(longest.saturating_add(reported), TimeCost::within(3, 6, u64::MAX, Provenance::Modelled));
    assert_eq!(longest.times(2).high, u64::MAX);
    for left in Provenance::ALL {
        for right in Provenance::ALL {
            let weaker = left.weaker(*right);
            assert!(weaker == *left || weaker == *right);
            assert_eq!(weaker, right.weaker(*left));
            assert_eq!(weaker.weaker(*left), weaker);
        }
        assert_eq!(Provenance::Measured.weaker(*left), *left);
        assert_eq!(Provenance::Modelled.weaker(*left), Provenance::Modelled);
    }
}

#[test]
fn a_bound_is_judged_by_the_whole_interval() {
    let time = TimeCost::within(20, 52, 130, Provenance::Modelled);
    let verdicts = [
        (130, GoalVerdict::Met),
        (129, GoalVerdict::Likely),
        (52, GoalVerdict::Likely),
        (51, GoalVerdict::Unlikely),
        (20, GoalVerdict::Unlikely),
        (19, GoalVerdict::Missed),
    ];
    for (bound, verdict) in verdicts {
        assert_eq!(time.verdict(bound), verdict, "{bound}");
    }
    assert_eq!(TimeCost::exact(7, Provenance::Measured).verdict(7), GoalVerdict::Met);
    assert_eq!(TimeCost::exact(7, Provenance::Measured).verdict(6), GoalVerdict::Missed);
}

#[test]
fn intervals_have_an_order_and_a_width() {
    let within = |low, likely, high| TimeCost::within(low, likely, high, Provenance::Modelled);
    assert!(within(1, 1, 1).is_ordered() && within(0, 5, 9).is_ordered());
    for wrong in [within(9, 5, 1), within(6, 5, 9), within(1, 10, 9), within(9, 5, 9)] {
        assert!(!wrong.is_ordered(), "{wrong:?}");
    }
    let widths = [
        (within(10, 20, 40), 4000),
        (within(3, 3, 3), 1000),
        (TimeCost::ZERO, 1000),
        (within(0, 1, 2), u64::MAX),
        (within(1, 2, u64::MAX), u64::MAX),
    ];
    for (time, width) in widths {
        assert_eq!(time.width(), width, "{time:?}");
    }
}

#[test]
fn an_overhead_without_bounds_does_not_vary() {
    let exact = r#"{"name":"call-microseconds","value":300,"provenance":"modelled"}"#;
    let exact: Overhead = serde_json::from_str(exact).unwrap();
    assert_eq!(exact.time(), TimeCost::exact(300, Provenance::Modelled));
    let wide = Overhead { low: Some(100), high: Some(4100), ..exact };
    assert_eq!(wide.time(), TimeCost::within(100, 300, 4100, Provenance::Modelled));
    let json = serde_json::to_string(&wide).unwrap();
    assert_eq!(serde_json::from_str::<Overhead>(&json).unwrap(), wide);
}
