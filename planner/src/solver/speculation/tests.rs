use super::super::{LEAST_GAIN, Settings, Speculate, solve};
use crate::testing::{RequestBuilder, call, refuse, set_time};
use crate::{
    Attempt, Cause, Cost, Draft, Entry, EntryKind, ErrorClass, Feedback, Goal, Plan, Provenance, Request,
    SoftcapPlace, TimeCost, learn,
};

const SIZES: [u32; 4] = [2, 4, 8, 16];

fn decode(rows: u32) -> Entry {
    Entry { kind: EntryKind::Decode, rows, context: 512 }
}

fn draft(silent: u32, accepted: &[u32]) -> Draft {
    Draft {
        name: "lookup".to_owned(),
        silent_steps: silent,
        accepted_steps: accepted.to_vec(),
        provenance: Provenance::Modelled,
        token_time: TimeCost::exact(0, Provenance::Modelled),
        memory_bytes: 0,
        row_bytes: 0,
    }
}

/// Creates a request of two layers with decodes of all sizes. At each, a layer needs `time`
/// microseconds and adds `bytes` to the artefact. `embed` and `head` need no time.
fn request(time: impl Fn(u32) -> u64, bytes: u64, drafts: Vec<Draft>) -> RequestBuilder {
    RequestBuilder::decoder(2).times(0, 0).change(|request| {
        let rows: Vec<Cost> = request.costs.iter().filter(|cost| cost.entry == decode(1)).cloned().collect();
        request.entries.extend(SIZES.map(decode));
        for (row, size) in rows.iter().flat_map(|row| SIZES.map(|size| (row, size))) {
            request.costs.push(Cost { entry: decode(size), artefact_bytes: bytes, ..row.clone() });
        }
        for cost in request.costs.iter_mut().filter(|cost| cost.kind == 2) {
            if cost.entry.kind == EntryKind::Decode {
                let time = time(cost.entry.rows);
                set_time(cost, time);
            }
        }
        request.drafts = drafts;
    })
}

fn plan(request: &Request, settings: &Settings) -> Plan {
    solve(request, settings).unwrap().into_plan(request)
}

/// Returns the rows in which proposals are verified.
fn chosen(request: &Request) -> Option<u32> {
    let plan = plan(request, &Settings::default());
    let rows = plan.speculation.as_ref().map(|speculation| speculation.rows);
    for shard in &plan.shards {
        let decodes = shard.entries.iter().filter(|entry| entry.kind == EntryKind::Decode);
        let expected: Vec<u32> = std::iter::once(1).chain(rows).collect();
        assert_eq!(decodes.map(|entry| entry.rows).collect::<Vec<_>>(), expected);
    }
    rows
}

/// Returns the plan's choice and cause about verifying.
fn said(request: &Request, settings: &Settings) -> (String, Cause) {
    let about = |choice: &str| choice.contains("verifies") || choice == "no proposals";
    let plan = plan(request, settings);
    let reason = plan.reasons.into_iter().find(|reason| about(&reason.choice)).unwrap();
    (format!("{}: {}", reason.choice, reason.because), reason.cause)
}

fn with(speculate: Speculate) -> Settings {
    Settings { speculate, ..Settings::default() }
}

/// Returns the microseconds of a token, counted step by step.
fn per_token(draft: &Draft, rows: Option<u32>, time: impl Fn(u32) -> u64) -> f64 {
    let (mut microseconds, mut tokens) = (0, 0);
    let silent = std::iter::repeat_n(None, draft.silent_steps as usize);
    let proposing = draft.accepted_steps.iter().enumerate();
    let proposing = proposing.flat_map(|(right, steps)| std::iter::repeat_n(Some(right), *steps as usize));
    for right in silent.chain(proposing) {
        match (rows, right) {
            (Some(rows), Some(right)) => {
                tokens += 1 + right.min(rows as usize - 1);
                microseconds += 2 * time(rows) + u64::from(rows - 1) * draft.token_time.likely;
            }
            _ => {
                tokens += 1;
                microseconds += 2 * time(1);
            }
        }
    }
    microseconds as f64 / tokens as f64
}

#[test]
fn no_other_rows_give_tokens_faster() {
    let times: [fn(u32) -> u64; 4] = [
        |_| 1000,
        |rows| 900 + 100 * u64::from(rows),
        |rows| 500 + 500 * u64::from(rows),
        |rows| 1000 + 3 * u64::from(rows).pow(2),
    ];
    let accepted: [(u32, &[u32]); 5] = [
        (90, &[4, 2, 1, 1, 1, 1]),
        (10, &[10, 10, 10, 5, 5, 5, 3, 3, 3, 1, 1, 1, 1, 1, 1, 9]),
        (0, &[0, 0, 0, 9]),
        (5, &[50]),
        (50, &[20, 30]),
    ];
    let (mut with, mut without) = (0, 0);
    for time in times {
        for (silent, accepted) in accepted {
            for microseconds in [0, 40] {
                let token_time = TimeCost::exact(microseconds, Provenance::Modelled);
                let draft = Draft { token_time, ..draft(silent, accepted) };
                let found = chosen(&request(time, 0, vec![draft.clone()]).build());
                let plain = per_token(&draft, None, time);
                let own = found.map_or(plain, |rows| per_token(&draft, Some(rows), time));
                let gain = 1.0 + LEAST_GAIN as f64 / 1000.0;
                for rows in SIZES {
                    let other = per_token(&draft, Some(rows), time);
                    // Of the sizes that are as fast as the fastest, as far as known, the one with
                    // fewest rows is chosen.
                    let enough = plain / other >= gain + 0.001;
                    assert!(!enough || other * 1.021 >= own, "{accepted:?}: {rows} before {found:?}");
                    let fewer = found.is_some_and(|found| rows < found) && enough;
                    assert!(
                        !fewer || other * 0.999 >= own,
                        "{accepted:?}: fewer rows, {rows}, are faster than {found:?}"
                    );
                }
                match found {
                    Some(_) => assert!(plain / own >= gain - 0.001),
                    None => without += 1,
                }
                with += usize::from(found.is_some());
            }
        }
    }
    assert!(with > 5 && without > 5, "{with} {without}");
}

#[test]
fn the_gain_is_stated_with_what_it_rests_on() {
    let drafts = vec![draft(90, &[2, 0, 0, 0, 0, 0, 0, 8])];
    let request = request(|rows| if rows > 8 { 4000 } else { 1000 }, 0, drafts).build();
    let plan = plan(&request, &Settings::default());
    let speculation = plan.speculation.unwrap();
    // 100 steps of equal time give 156 tokens.
    assert_eq!((speculation.rows, speculation.gain_thousandths), (8, Some(1560)));
    assert_eq!(speculation.draft, "lookup");
    let (said, cause) = said(&request, &Settings::default());
    let expected = "decode_8@512 verifies the proposals of lookup: expected to be 1.56x as fast: 10 of 100 \
                    steps propose tokens and take 2 ms for 6.6 tokens, as long as the others take for one \
                    (modelled)";
    assert_eq!((said.as_str(), cause), (expected, Cause::Cost("time".to_owned())));
}

#[test]
fn of_two_drafts_the_one_that_is_worth_its_time_is_taken() {
    let model = Draft { name: "small".to_owned(), ..draft(0, &[0, 0, 0, 90]) };
    let time = |microseconds| TimeCost::exact(microseconds, Provenance::Modelled);
    let fast = Draft { token_time: time(10), ..model.clone() };
    let slow = Draft { token_time: time(9000), ..model };
    for (model, expected) in [(fast, "small"), (slow, "lookup")] {
        let drafts = vec![draft(80, &[5, 5, 5, 5]), model];
        let request = request(|rows| 1000 + u64::from(rows), 0, drafts).build();
        let plan = plan(&request, &Settings::default());
        assert_eq!(plan.speculation.unwrap().draft, expected);
    }
}

#[test]
fn what_the_runtime_does_of_each_row_counts() {
    let drafts = vec![draft(0, &[0, 0, 0, 0, 0, 0, 0, 1])];
    // The runtime caps each row: 4 ms in addition to 2 ms.
    let capped = request(|_| 1000, 0, drafts.clone()).softcap(4000).build();
    let settings = Settings { softcap: Some(SoftcapPlace::Runtime), ..Settings::default() };
    let gain = plan(&capped, &settings).speculation.unwrap().gain_thousandths.unwrap();
    // 8 tokens in 2 + 8 * 4 ms, instead of 6 ms each.
    assert_eq!(gain, 6 * 8 * 1000 / (2 + 8 * 4));
    // Each row is transferred between shards on two targets.
    let mut moved = request(|_| 1000, 0, drafts).target("cpu", "cpu").times(1, 5000).build();
    moved.transfer_nanoseconds = 2_000_000;
    for cost in moved.costs.iter_mut().filter(|cost| (cost.kind, cost.target) == (1, 0)) {
        refuse(cost, "no head");
    }
    let gain = plan(&moved, &Settings::default()).speculation.unwrap().gain_thousandths.unwrap();
    // The layers need 2 ms, the head 5 ms.
    assert_eq!(gain, (7 + 2) * 8 * 1000 / (7 + 8 * 2));
}

#[test]
fn a_draft_of_which_nothing_is_known_is_no_gain() {
    let nothing = request(|_| 1000, 0, vec![draft(0, &[])]).build();
    assert_eq!(chosen(&nothing), None);
    let (said, cause) = said(&nothing, &Settings::default());
    assert!(said.ends_with("the accepted proposals of draft `lookup` are not known"), "{said}");
    assert_eq!(cause, Cause::Cost("time".to_owned()));
    // The user can still request it.
    let plan = plan(&nothing, &with(Speculate::Rows(4)));
    let speculation = plan.speculation.unwrap();
    assert_eq!((speculation.rows, speculation.gain_thousandths), (4, None));
}

/// The likely times decide, however uncertain they are.
#[test]
fn the_gain_is_of_likely_times() {
    let uncertain = request(|_| 1000, 0, vec![draft(0, &[0, 0, 0, 9])]).change(|request| {
        for cost in &mut request.costs {
            let crate::Support::Legal(time) = &mut cost.support else { continue };
            (time.low, time.high) = (time.likely / 10, time.likely * 10);
        }
    });
    let plan = plan(&uncertain.build(), &Settings::default());
    assert_eq!(plan.speculation.unwrap().gain_thousandths, Some(4000));
}

#[test]
fn too_small_a_gain_is_none_and_a_larger_artefact_asks_for_more() {
    let small = request(|rows| 1000 + u64::from(rows), 0, vec![draft(99, &[0, 1])]).build();
    assert_eq!(chosen(&small), None);
    let (why, _) = said(&small, &Settings::default());
    assert!(why.contains("would be 1.00x as fast") && why.ends_with("at least 1.02x is required"), "{why}");
    // A gain of 1.3 justifies artefacts that are a quarter larger, but not half as large again.
    let drafts = || vec![draft(70, &[20, 0, 0, 10])];
    let plain = solve(&request(|_| 1000, 0, vec![]).build(), &Settings::default()).unwrap();
    let bytes = plain.shards.iter().map(|shard| shard.cost.artefact_bytes).sum::<u64>();
    let growing = |part: u64| request(|_| 1000, bytes / part / 4, drafts()).build();
    assert_eq!(chosen(&growing(4)), Some(4));
    assert_eq!(chosen(&growing(2)), None);
    let (why, cause) = said(&growing(2), &Settings::default());
    assert!(why.contains("replies would be 1.30x as fast, but artefacts 1.50x as large"), "{why}");
    assert_eq!(cause, Cause::Cost("time".to_owned()));
    let asked = plan(&growing(2), &with(Speculate::Rows(4)));
    assert_eq!(asked.speculation.unwrap().rows, 4);
}

#[test]
fn without_room_nothing_is_verified_and_no_layer_moves() {
    let drafts = || vec![Draft { memory_bytes: 7, row_bytes: 3, ..draft(0, &[0, 0, 0, 9]) }];
    let builder = || request(|_| 1000, 10, drafts()).target("cpu", "cpu");
    let used = |plan: &Plan| plan.shards.iter().map(|shard| shard.target).collect::<Vec<_>>();
    let free = builder().build();
    let best = solve(&free, &Settings::default()).unwrap();
    assert_eq!(best.speculation.as_ref().unwrap().rows, 4);
    let memory = best.shards.iter().map(|shard| shard.cost.context_bytes()).sum::<u64>() + 7 + 4 * 3;
    let size = best.shards.iter().map(|shard| shard.cost.artefact_bytes).sum::<u64>();
    let all_on_npu = used(&best.into_plan(&free));
    let bounded = |memory_bytes: Option<u64>, size_bytes: Option<u64>| {
        builder()
            .change(|request| {
                request.goals.bounds.extend(memory_bytes.map(Goal::MemoryBytes));
                request.goals.bounds.extend(size_bytes.map(Goal::SizeBytes));
            })
            .build()
    };
    let settings = Settings { falls_back: false, ..Settings::default() };
    for (memory, size, fits, goal) in [
        (Some(memory), None, Some(4), ""),
        // Fewer rows need less memory.
        (Some(memory - 1), None, Some(2), ""),
        (Some(memory - 7), None, None, "memory"),
        (None, Some(size), Some(4), ""),
        (None, Some(size - 1), None, "size"),
    ] {
        let request = bounded(memory, size);
        let plan = plan(&request, &settings);
        assert_eq!(plan.speculation.as_ref().map(|own| own.rows), fits, "{memory:?} {size:?}");
        assert_eq!(used(&plan), all_on_npu);
        if fits.is_none() {
            let (why, cause) = said(&request, &settings);
            assert!(why.contains(&format!("with decode_4, {goal} ")), "{why}");
            assert_eq!(cause, Cause::Goal(goal.to_owned()));
        }
    }
}

#[test]
fn a_limit_of_a_shard_is_kept_by_more_shards_where_that_is_faster() {
    let drafts = || vec![draft(80, &[0, 0, 0, 20])];
    let whole = solve(&request(|_| 1000, 10, vec![]).build(), &Settings::default()).unwrap();
    let bytes = whole.shards[0].cost.artefact_bytes;
    assert_eq!(whole.shards.len(), 1);
    let limited = |microseconds: u64| {
        request(|_| 1000, 10, drafts()).limit("npu", "artefact-bytes", bytes).change(|request| {
            request.targets[0].overheads.push(call(microseconds));
        })
    };
    let cut = plan(&limited(10).build(), &Settings::default());
    assert_eq!((cut.shards.len(), cut.speculation.unwrap().rows), (2, 4));
    // If the overhead of calls exceeds the gain, one shard stays.
    let kept = limited(20_000).build();
    let plan = plan(&kept, &Settings::default());
    assert_eq!((plan.shards.len(), plan.speculation), (1, None));
    let (why, cause) = said(&kept, &Settings::default());
    assert!(why.contains("artefact-bytes of a shard"), "{why}");
    assert_eq!(cause, Cause::Limit("artefact-bytes".to_owned()));
}

#[test]
fn a_target_that_does_not_take_the_rows_has_none() {
    let mut request = request(|_| 1000, 0, vec![draft(0, &[0, 0, 0, 9])]).build();
    for (least, left) in [(4, Some(2)), (2, None)] {
        let too_many = |entry: Entry| entry == decode(entry.rows) && entry.rows >= least;
        for cost in request.costs.iter_mut().filter(|cost| cost.kind == 2 && too_many(cost.entry)) {
            refuse(cost, "too many rows");
        }
        assert_eq!(chosen(&request), left);
    }
    let (why, _) = said(&request, &Settings::default());
    assert!(why.ends_with("`npu` does not support decode_2@512: too many rows"), "{why}");
}

#[test]
fn it_can_be_left_out_and_asked_for() {
    let request = request(|_| 1000, 0, vec![draft(0, &[0, 0, 0, 9])]).build();
    assert_eq!(plan(&request, &with(Speculate::No)).speculation, None);
    assert_eq!(plan(&request, &with(Speculate::Rows(16))).speculation.unwrap().rows, 16);
    let (why, cause) = said(&request, &with(Speculate::Rows(16)));
    assert!(why.contains("requested; expected to be 4.00x as fast"), "{why}");
    assert_eq!(cause, Cause::Preference("speculation".to_owned()));
    let refused = solve(&request, &with(Speculate::Rows(5))).unwrap_err();
    assert_eq!(refused.kind, crate::RefusalKind::InvalidRequest);
    assert!(refused.message.ends_with(": expected 2 or 4 or 8 or 16"));
    let none = Request { drafts: vec![], ..request };
    let refused = solve(&none, &with(Speculate::Rows(4))).unwrap_err();
    assert!(refused.message.ends_with("the request has no draft"), "{}", refused.message);
    assert_eq!(plan(&none, &Settings::default()).speculation, None);
}

#[test]
fn what_a_compiler_refuses_is_left_out_before_anything_else_changes() {
    let request = request(|_| 1000, 0, vec![draft(0, &[0, 0, 0, 9])]).build();
    let first = plan(&request, &Settings::default());
    let refused = |details: &[(&str, &str)]| Attempt {
        plan: first.clone(),
        feedback: vec![Feedback {
            shard: Some(0),
            class: Some(ErrorClass::Unmappable),
            message: "no".to_owned(),
            details: details.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            times: vec![],
            drift_per_mille: None,
            extensions: vec![],
        }],
    };
    for details in [&[][..], &[("entry", "decode_4@512")]] {
        let next = learn::revise(&request, &[refused(details)], &Settings::default()).unwrap();
        assert_eq!(next.speculation, None);
        assert_eq!((next.shards.len(), first.shards.len()), (1, 1));
        let learned = Cause::Feedback("unmappable".to_owned());
        let reason = next.reasons.iter().find(|reason| reason.cause == learned).unwrap();
        assert_eq!(reason.because, "a plan with them was refused: no");
    }
    // Another entry point was refused, so the shard is cut.
    let other = refused(&[("entry", "decode_1@512")]);
    let next = learn::revise(&request, &[other], &Settings::default()).unwrap();
    assert!(next.speculation.is_some() && next.shards.len() > 1);
}
