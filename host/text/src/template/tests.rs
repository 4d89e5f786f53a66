use shardwright_vocabulary::ErrorKind;

use super::*;

fn template(source: &str) -> Result<ChatTemplate> {
    ChatTemplate::from_source(source, "chat_template.jinja", &[("bos_token", "<bos>")])
}

fn rendered(source: &str) -> Result<String> {
    let conversation =
        [Message::system("S"), Message::user(" u\n"), Message::assistant("<think>t</think>\n\na")];
    let options = RenderOptions {
        tools: Some(TemplateValue::from_json(
            r#"[{"name": "f", "parameters": {"z": 1, "a": [true]}}]"#,
            "tools",
        )?),
        now_unix_seconds: Some(1_709_164_800),
        ..RenderOptions::default()
    };
    template(source)?.render(&conversation, &options)
}

#[test]
fn templates_mean_what_hugging_face_means() {
    for (source, expected) in [
        // Blocks: the newline after a tag and the blanks before it are removed. One newline at the
        // end is removed.
        ("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"),
        ("{{ bos_token }}{{ unk_token }}|", "<bos>|"),
        // Values print like in Python.
        ("{{ [1, 'a', none, true, 1.0] }}{{ {'k': 'v'} }}", "[1, 'a', None, True, 1.0]{'k': 'v'}"),
        ("{{ messages|length * 1000000000 }}", "3000000000"),
        ("{{ 7 // 2 }} {{ 7 / 2 }} {{ -7 % 3 }} {{ 2 ** 3 }}", "3 3.5 2 8"),
        // String methods.
        ("{{ ' x '.strip() }}{{ 'xxa'.lstrip('x') }}{{ 'a,b'.split(',')[-1] }}", "xab"),
        ("{{ 'ab'.startswith('a') and not 'ab'.endswith('a') }}{{ 'a'.upper() }}", "TrueA"),
        ("{{ 'ab'.removeprefix('a') }}{{ 'ab'.removesuffix('b') }}{{ 'ab'.removesuffix('x') }}", "baab"),
        ("{{ 'a-b'.replace('-', '+') }}{{ 'a-b'|replace('-', '+') }}", "a+ba+b"),
        ("{{ ', '.join(['a', 'b']) }}{{ ['a', 'b']|join('/') }}", "a, ba/b"),
        ("{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}{{ v }}{% endfor %}", "b1a2"),
        ("{% for k, v in {'b': 1, 'a': 2}|dictsort %}{{ k }}{{ v }}{% endfor %}", "a2b1"),
        // Control.
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "023",
        ),
        (
            "{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
            "3",
        ),
        ("{% macro m(x, y='d') %}<{{ x }}{{ y }}>{% endmacro %}{{ m('a') }}{{ m('a', y='b') }}", "<ad><ab>"),
        (
            "{% for n in [1, [2, [3]]] recursive %}{% if n is sequence %}({{ loop(n) }}){% else %}{{ n }}{% endif %}{% endfor %}",
            "1(2(3))",
        ),
        ("{% set x %}cap{{ 1 }}{% endset %}{{ x * 2 }}", "cap1cap1"),
        ("{% generation %}g{%- endgeneration -%} x", "gx"),
        // Features that the published Qwen and Gemma templates use.
        (
            "{% for m in messages[::-1] %}{{ m.role[0] }}{{ loop.index0 }}{% if not loop.last %},{% endif %}{% endfor %}",
            "a0,u1,s2",
        ),
        ("{{ messages[2].content.split('</think>')[-1].lstrip('\\n') }}", "a"),
        (
            "{% if messages[0].role == 'system' and tools %}{{ tools[0] | tojson }}{% endif %}",
            r#"{"name": "f", "parameters": {"z": 1, "a": [true]}}"#,
        ),
        ("{{ tools[0].parameters|tojson(indent=2) }}", "{\n  \"z\": 1,\n  \"a\": [\n    true\n  ]\n}"),
        ("{{ tools[0].parameters|tojson(sort_keys=true, separators=(',', ':')) }}", r#"{"a":[true],"z":1}"#),
        (
            "{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|map('trim')|join('') }}",
            "u",
        ),
        ("{{ 'x' if enable_thinking is defined and enable_thinking else 'y' }}", "y"),
        (
            "{{ documents is none }}{{ add_generation_prompt }}{{ messages[1].name is defined }}",
            "TrueTrueFalse",
        ),
        (
            "{% if messages[0].content is string %}s{% endif %}{% if tools is iterable and tools is not mapping %}l{% endif %}",
            "sl",
        ),
        ("{{ strftime_now('%d %b %Y') }}", "29 Feb 2024"),
        ("{{ messages[9] }}{{ nothing }}|{{ nothing|default('d') }}", "|d"),
        ("{{ '<a&b>' | tojson }}{{ '<&>' }}", "\"<a&b>\"<&>"),
    ] {
        assert_eq!(
            rendered(source).as_deref().ok(),
            Some(expected),
            "{source}: {:?}",
            rendered(source).err()
        );
    }
}

const PLACE: &str = "chat template chat_template.jinja, line";

fn is_at(error: &Error, line: usize) -> bool {
    error.place() == Some(format!("{PLACE} {line}").as_str())
}

fn is_unsupported(error: &Error, what: &str) -> bool {
    error.kind() == ErrorKind::Unsupported
        && is_at(error, 1)
        && error.message() == format!("unsupported: {what}")
}

/// Checks for the error of a template that does not parse.
fn is_invalid(error: &Error) -> bool {
    error.kind() == ErrorKind::Invalid
        && error.place().is_some_and(|place| place.starts_with(PLACE))
        && error.help().is_some_and(|help| help.contains("a corrected chat_template.jinja"))
}

/// Checks for the error of a template that failed while it ran.
fn has_failed(error: &Error) -> bool {
    error.kind() == ErrorKind::Invalid
        && error.place().is_some_and(|place| place.starts_with(PLACE))
        && error.help().is_some_and(|help| help.contains("contents of the messages"))
}

#[test]
fn failures_are_distinguished() {
    type Check = fn(&Error) -> bool;
    let cases: &[(&str, Check)] = &[
        ("{{ raise_exception('roles must alternate') }}", |e| {
            e.kind() == ErrorKind::Invalid
                && e.place() == Some("chat template chat_template.jinja")
                && e.message() == "conversation refused: roles must alternate"
        }),
        ("\n{% if %}", |e| is_invalid(e) && is_at(e, 2)),
        ("{{ 'a", is_invalid),
        ("\n\n{{ nothing.more }}", |e| has_failed(e) && is_at(e, 3)),
        ("{{ 1 + 'a' }}", has_failed),
        ("{{ nothing|tojson }}", has_failed),
        ("{{ 1|tojson(indent=65) }}", has_failed),
        ("{{ 1|sparkle }}", |e| is_unsupported(e, "filter sparkle")),
        ("{{ 1 is sparkly }}", |e| is_unsupported(e, "test sparkly")),
        ("{{ sparkle() }}", |e| is_unsupported(e, "function sparkle")),
        ("{{ 'a'.sparkle() }}", |e| e.kind() == ErrorKind::Unsupported),
        ("{% sparkle %}", |e| e.kind() == ErrorKind::Unsupported),
        ("{% include 'other' %}", |e| e.kind() == ErrorKind::Unsupported),
        ("{{ strftime_now('%Q') }}", |e| e.kind() == ErrorKind::Unsupported),
        ("{{ messages[0].items() }}", |e| e.kind() == ErrorKind::Unsupported),
        ("{{ messages|map('string') ~ '' }}", |e| e.kind() == ErrorKind::Unsupported),
        ("{{ messages[0].items }}", |e| e.kind() == ErrorKind::Unsupported),
        ("{{ namespace(a=1) }}", |e| e.kind() == ErrorKind::Unsupported),
        ("{% for x in none %}{% endfor %}", has_failed),
        ("{{ [1]|zip([2]) }}", |e| e.kind() == ErrorKind::Unsupported),
    ];
    for (source, check) in cases {
        let error = rendered(source).expect_err(source);
        assert!(check(&error), "{source}: {error:?}");
        assert!(error.to_string().contains("chat_template.jinja") && error.help().is_some(), "{error}");
    }
}

/// Each of these would run for hours, fill the memory or overflow the stack without limits.
#[test]
fn hostile_templates_are_stopped() {
    let grow = |step: &str| {
        format!(
            "{{% set ns = namespace(x='xxxxxxxx', l=[1]) %}}{{% for i in range(100) %}}{{% set {step} %}}{{% endfor %}}"
        )
    };
    let forever = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}";
    let cases: Vec<(String, &str)> = vec![
        (forever.into(), "steps"),
        ("{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}".into(), "recursion"),
        (
            "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}"
                .into(),
            "steps",
        ),
        (format!("{{% for a in range(99999) %}}{}{{% endfor %}}", "flood".repeat(1000)), "builds more than"),
        (
            format!("{{% for a in range(99999) %}}{{{{ '{}' }}}}{{% endfor %}}", "flood".repeat(1000)),
            "builds more than",
        ),
        (
            format!("{{% for a in range(2000) %}}{}{{% endfor %}}", "flood".repeat(1000)),
            "more than 8388608 bytes",
        ),
        (
            format!(
                "{{% set x %}}{{% for a in range(99999) %}}{}{{% endfor %}}{{% endset %}}",
                "flood".repeat(1000)
            ),
            "builds more than",
        ),
        (grow("ns.x = ns.x ~ ns.x"), "more than 8388608 bytes"),
        (grow("ns.x = ns.x + ns.x"), "more than 8388608 bytes"),
        (grow("ns.x = ns.x * 9"), "more than 8388608 bytes"),
        (grow("ns.l = ns.l + ns.l"), "more than"),
        (grow("ns.l = ns.l * 300"), "more than"),
        (grow("ns.l = [ns.l]"), "levels of a value"),
        (grow("ns.l = [ns.l, ns.l]"), "more than"),
        (grow("ns.l = {'k': ns.l}"), "levels of a value"),
        (grow("ns.l = [ns.l]|select"), "levels of a value"),
        (grow("ns.l = {'k': ns.l}.get"), "levels of a value"),
        (grow("ns.x = 'x'.ljust(65536) ~ ns.x ~ ns.x"), "more than 8388608 bytes"),
        (grow("ns.x = 'x'.center(99999999)"), "width should be a small number"),
        (grow("ns.x = '\t\t' ~ ns.x.expandtabs(64) ~ '\t' * 900 ~ ns.x"), "more than"),
        (grow("ns.x = ns.x[::-1] ~ ns.x"), "more than 8388608 bytes"),
        (grow("ns.x = ns.x ~ [ns.x]"), "more than 8388608 bytes"),
        (grow("ns.x = '%s%s' % (ns.x, ns.x)"), "more than 8388608 bytes"),
        (grow("ns.x = ns.x|replace('x', ns.x)"), "more than 8388608 bytes"),
        (grow("ns.x = ns.x.replace('x', ns.x)"), "more than 8388608 bytes"),
        (grow("ns.x = ns.x|replace('', ns.x)"), "more than 8388608 bytes"),
        (grow("ns.x = ns.x.join([ns.x, ns.x, ns.x])"), "more than 8388608 bytes"),
        (grow("ns.x = [ns.x, ns.x, ns.x]|join(ns.x)"), "more than 8388608 bytes"),
        (grow("ns.x = [ns.x, ns.x]|string"), "more than 8388608 bytes"),
        (grow("ns.x = [ns.x, ns.x]|tojson"), "more than 8388608 bytes"),
        (grow("ns.x = ('\n' ~ ns.x)|indent(99999)|indent(99999) ~ ns.x ~ ns.x"), "more than 8388608 bytes"),
        (grow("ns.self = ns"), "namespace inside"),
        (grow("ns.l = [ns]"), "namespace inside"),
        (grow("ns.l = namespace(a=ns)"), "namespace inside"),
        (grow("ns.l = [1]|batch(10000000, 1)|list"), "more than"),
        (grow("ns.l = [1]|slice(10000000)|list"), "more than"),
        (grow("ns.x = '%099999999d'|format(1)"), "more than"),
        (grow("ns.x = '{:99999999}'.format(1)"), "more than"),
        (grow("ns.x = '%*d'|format(99999999, 1)"), "more than"),
        ("{{ 'x' * 99999999 }}".into(), "bytes of constants"),
        ("{{ 'x' * (5000 + 5000) * 10000 }}".into(), "bytes of constants"),
        ("{{ 'x' * 10 ** 8 }}".into(), "bytes of constants"),
        ("{{ 'x' * 1e8 }}".into(), "bytes of constants"),
        ("{{ [1] * 99999999 }}".into(), "bytes of constants"),
        (format!("{{{{ {}1 }}}}", "not ".repeat(200_000)), "tokens in one tag"),
        (format!("{{{{ {}1 }}}}", "(".repeat(200_000)), "tokens in one tag"),
        (format!("{{{{ a{} }}}}", ".b".repeat(200_000)), "tokens in one tag"),
        ("{% if a %}".repeat(90_000), "levels of blocks"),
        ("{% set a %}".repeat(90_000), "levels of blocks"),
        (format!("{{% if a %}}{}{{% endif %}}", "{% elif b %}".repeat(50_000)), "levels of blocks"),
        ("{{ range(99999999)|list }}".into(), "too many elements"),
    ];
    // Without the clock, which stops long runs earlier on a busy machine.
    let counted = |source: &str| {
        let (path, time) = (Path::new("chat_template.jinja"), std::time::Duration::from_secs(600));
        engine::render_within(time, source, path, Value::from_pairs([("a", 1)]), 0, None)
    };
    for (source, expected) in cases {
        let shown: String = source.chars().take(120).collect();
        let result = if expected == "steps" { counted(&source) } else { rendered(&source) };
        let error = result.map(|text| text.len()).expect_err(&shown);
        assert!(error.to_string().contains(expected), "{shown}: {error}");
        assert!(error.help().is_some());
    }
}

#[test]
fn slow_templates_are_stopped_by_the_clock() {
    let source = "{% for i in range(3) %}x{% endfor %}";
    let path = Path::new("chat_template.jinja");
    let run = |time| engine::render_within(time, source, path, Value::from_pairs([("a", 1)]), 0, None);
    assert_eq!(run(std::time::Duration::from_secs(60)).unwrap(), "xxx");
    let error = run(std::time::Duration::ZERO).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Invalid, "did not end within 10 s"));
    assert!(error.help().is_some(), "{error}");
}

/// The deepest and longest templates that pass the checks do not overflow a thread's stack, and run
/// quickly.
#[test]
fn templates_at_the_limits_work() {
    let nested = format!("{}x{}", "{% if true %}".repeat(100), "{% endif %}".repeat(100));
    assert_eq!(rendered(&nested).unwrap(), "x");
    let elifs = format!("{{% if a %}}{}{{% else %}}x{{% endif %}}", "{% elif b %}".repeat(99));
    assert_eq!(rendered(&elifs).unwrap(), "x");
    let sum = format!("{{{{ 1{} }}}}", " + messages|length".repeat(255));
    assert_eq!(rendered(&sum).unwrap(), "766");
    let chain = format!("{{{{ bos_token{} }}}}", "|trim".repeat(511));
    assert_eq!(rendered(&chain).unwrap(), "<bos>");
    let flags = format!("{{{{ {}1 }}}}", "not ".repeat(1000));
    assert_eq!(rendered(&flags).unwrap(), "True");
    let negative = format!("{{{{ {}1 }}}}", "-".repeat(1000));
    assert!(rendered(&negative).err().is_none_or(|error| is_invalid(&error)));
    let brackets = format!("{{{{ {}1{} }}}}", "[".repeat(500), "]".repeat(500));
    assert!(rendered(&brackets).is_err());
}

#[test]
fn long_conversations_render() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/gemma4_text");
    let template = ChatTemplate::from_directory(directory).unwrap().unwrap();
    let turns: Vec<Message> = (0..2000)
        .map(|turn| {
            let text = format!("turn {turn} ").repeat(50);
            if turn % 2 == 0 { Message::user(text) } else { Message::assistant(text) }
        })
        .collect();
    let text = template.render(&turns, &RenderOptions::default()).unwrap();
    assert!(text.contains("turn 1999") && text.ends_with("<|turn>model\n"));
}

fn directory(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

/// Returns a source of the same files as bytes.
fn files_of(files: &[(&str, &[u8])]) -> impl Fn(&str) -> Option<Vec<u8>> {
    move |name| files.iter().find(|(existing, _)| *existing == name).map(|(_, bytes)| bytes.to_vec())
}

#[test]
fn the_template_file_wins_over_the_configuration() {
    let config: &[u8] = br#"{"chat_template": "config", "bos_token": {"content": "<b>"}, "eos_token": null, "add_bos_token": true}"#;
    let both = directory(&[
        ("tokenizer_config.json", config),
        ("chat_template.jinja", b"file{{ bos_token }}{{ eos_token }}"),
    ]);
    let template = ChatTemplate::from_directory(both.path()).unwrap().unwrap();
    assert_eq!(template.render(&[], &RenderOptions::default()).unwrap(), "file<b>");
    let bytes = [("tokenizer_config.json", config), ("chat_template.jinja", b"file{{ bos_token }}")];
    let template = ChatTemplate::from_files("nowhere", files_of(&bytes)).unwrap().unwrap();
    assert_eq!(template.render(&[], &RenderOptions::default()).unwrap(), "file<b>");
    assert!(ChatTemplate::from_files("nowhere", files_of(&[])).unwrap().is_none());
    let one = directory(&[("tokenizer_config.json", config)]);
    let template = ChatTemplate::from_directory(one.path()).unwrap().unwrap();
    assert_eq!(template.render(&[], &RenderOptions::default()).unwrap(), "config");
    assert!(ChatTemplate::from_directory(directory(&[]).path()).unwrap().is_none());
}

/// As in Hugging Face, which reads the older file unless the configuration lists added tokens.
#[test]
fn tokens_of_the_older_file_and_of_objects_are_variables() {
    let template: (&str, &[u8]) = ("chat_template.jinja", b"{{ bos_token }}{{ image_token }}");
    let map: (&str, &[u8]) = ("special_tokens_map.json", br#"{"bos_token": "<b>"}"#);
    let rendered = |config: &[u8]| {
        let files = [template, map, ("tokenizer_config.json", config)];
        let template = ChatTemplate::from_files("nowhere", files_of(&files)).unwrap().unwrap();
        template.render(&[], &RenderOptions::default()).unwrap()
    };
    let objects: &[u8] = br#"{"bos_token": "<a>", "extra_special_tokens": {"image_token": "<i>"}}"#;
    assert_eq!(rendered(objects), "<b><i>");
    let listed: &[u8] = br#"{"bos_token": "<a>", "added_tokens_decoder": {}, "image_token": "<i>"}"#;
    assert_eq!(rendered(listed), "<a><i>");
}

#[test]
fn named_templates_are_chosen() {
    let config: &[u8] = br#"{"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}, {"name": "rag", "template": "r"}]}"#;
    let folder = directory(&[("tokenizer_config.json", config)]);
    let template = ChatTemplate::from_directory(folder.path()).unwrap().unwrap();
    assert_eq!(template.names().collect::<Vec<_>>(), ["default", "tool_use", "rag"]);
    let plain = RenderOptions::default();
    let tools = RenderOptions { tools: Some(TemplateValue::none()), ..RenderOptions::default() };
    assert_eq!(template.render(&[], &plain).unwrap(), "d");
    assert_eq!(template.render(&[], &tools).unwrap(), "t");
    assert_eq!(template.render_named("rag", &[], &plain).unwrap(), "r");
    let error = template.render_named("other", &[], &plain).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Argument, "no chat template named `other`"));
    assert!(error.help().unwrap().ends_with(": default, tool_use, rag"), "{error:?}");

    let config: &[u8] = br#"{"chat_template": [{"name": "tool_use", "template": "t"}]}"#;
    let folder = directory(&[("tokenizer_config.json", config)]);
    let template = ChatTemplate::from_directory(folder.path()).unwrap().unwrap();
    assert_eq!(template.render(&[], &tools).unwrap(), "t");
    let error = template.render(&[], &plain).unwrap_err();
    let expected = "no chat template is named `default`, only tool_use";
    assert_eq!((error.kind(), error.message()), (ErrorKind::Unsupported, expected));
    assert!(error.place().is_some_and(|place| place.ends_with("tokenizer_config.json")), "{error}");
    assert!(error.help().is_some());
}

#[test]
fn bad_configurations_are_named() {
    let json = |text: &'static str| vec![("tokenizer_config.json", text.as_bytes())];
    for (files, expected) in [
        (json(r#"{"chat_template": 3}"#), "`chat_template` should be"),
        (json(r#"{"chat_template": []}"#), "`chat_template` should be"),
        (json(r#"{"chat_template": [{"name": "x"}]}"#), "`chat_template` should be"),
        (json(r#"{"chat_template": [{"name": 1, "template": "x"}]}"#), "`chat_template` should be"),
        (
            json(r#"{"chat_template": [{"name": "a", "template": "x"}, {"name": "a", "template": "y"}]}"#),
            "`chat_template` has a second template `a`",
        ),
        (json(r#"{"bos_token": 3}"#), "`bos_token` should be"),
        (json(r#"{"bos_token": {"text": "x"}}"#), "`bos_token` should be"),
        (json(r#"{"bos_token": ["x"]}"#), "`bos_token` should be"),
        (json("{"), "not valid JSON"),
        (json("[1]"), "expected a JSON object, got [1]"),
        (json(r#"{"chat_template": "a", "chat_template": "b"}"#), "a second key `chat_template` at line 1 "),
        (vec![("tokenizer_config.json", b"{\"a\": \"\xff\"}")], "not UTF-8"),
        (vec![("chat_template.jinja", b"{{ '\xc3' }}")], "not UTF-8"),
        (vec![("chat_template.jinja", b"{% if %}")], "chat_template.jinja, line 1"),
    ] {
        let folder = directory(&files);
        let error = ChatTemplate::from_directory(folder.path()).expect_err(expected);
        let other = ChatTemplate::from_files(folder.path(), files_of(&files)).expect_err(expected);
        assert_eq!(error.to_string(), other.to_string());
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.to_string().contains(files[0].0), "{error}");
    }
    let large = vec![b'x'; TEMPLATE_BYTES_MAX as usize + 1];
    let folder = directory(&[("chat_template.jinja", &large)]);
    let bytes = [("chat_template.jinja", &large[..])];
    for error in [
        ChatTemplate::from_directory(folder.path()).unwrap_err(),
        ChatTemplate::from_files(folder.path(), files_of(&bytes)).unwrap_err(),
        template(&"x".repeat(large.len())).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.place().is_some_and(|place| place.ends_with("chat_template.jinja")), "{error}");
        assert!(error.message().contains("more than 1048576 bytes"), "{error}");
    }
}

#[test]
fn generation_tags_alone_are_replaced() {
    for (source, expected) in [
        ("{% generation %}", "{% if true %}"),
        ("{%- generation -%}x{%+ endgeneration %}", "{%- if true -%}x{%+ endif %}"),
        ("{% set generation = 1 %}", "{% set generation = 1 %}"),
        ("{% generations %}{{ generation }}{%", "{% generations %}{{ generation }}{%"),
        ("é{%é{% endgeneration %}", "é{%é{% endif %}"),
    ] {
        assert_eq!(without_generation_tags(source), expected);
    }
}

#[test]
fn templates_cross_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<ChatTemplate>();
    shared::<Message>();
    shared::<RenderOptions>();
    shared::<Error>();
    shared::<crate::Tokenizer>();
    shared::<crate::Reply>();
    shared::<crate::Sampler>();
}
