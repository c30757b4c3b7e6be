//! Tests of what is masked and what is not.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use proptest::collection::vec;
use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::settings::model::JobLogStreamSettings;

/// Contains characters that the encodings treat differently.
const SECRET: &str = r#"p@ss/w"ö\rd<${7}'& %{+~=?"#;
const TOKEN: &str = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
const KEY: &str = "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA7bq9Gk2PzQ\nx5VnYc0Lr8tWmZq1\n-----END KEY-----\n";

fn rules(settings: &JobLogStreamSettings) -> Rules {
    Rules::new(settings).unwrap()
}

fn masker(secrets: &[&str]) -> Masker {
    Masker::new(secrets.iter().copied(), &rules(&JobLogStreamSettings::default()))
}

fn base64_wrapped(text: &str, columns: usize) -> String {
    let encoded = STANDARD.encode(text);
    let lines: Vec<_> =
        encoded.as_bytes().chunks(columns).map(|line| str::from_utf8(line).unwrap()).collect();
    lines.join("\n")
}

#[test]
fn every_encoding_is_masked() {
    let go = r#"p@ss/w\"ö\\rd\u003c${7}'\u0026 %{+~=?"#;
    let disguises = [
        ("plain", SECRET.to_owned()),
        ("JSON of serde", serde_json::to_string(SECRET).unwrap().trim_matches('"').to_owned()),
        ("JSON of Go", go.to_owned()),
        ("JSON of Python", r#"p@ss/w\"\u00f6\\rd<${7}'& %{+~=?"#.to_owned()),
        ("JSON in ASCII with capitals", r#"p@ss/w\"\u00F6\\rd<${7}'& %{+~=?"#.to_owned()),
        ("JSON of .NET", r"p@ss/w\u0022\u00F6\\rd\u003C${7}\u0027\u0026 %{\u002B~=?".to_owned()),
        ("JSON of PHP", r#"p@ss\/w\"\u00f6\\rd<${7}'& %{+~=?"#.to_owned()),
        ("JSON in JSON", r#"p@ss/w\\\"ö\\\\rd<${7}'& %{+~=?"#.to_owned()),
        ("HCL heredoc", r#"p@ss/w"ö\rd<$${7}'& %%{+~=?"#.to_owned()),
        ("HCL quoted", r#"p@ss/w\"ö\\rd<$${7}'& %%{+~=?"#.to_owned()),
        ("shell", r#"p@ss/w"ö\rd<${7}'\''& %{+~=?"#.to_owned()),
        ("shell of Python", r#"p@ss/w"ö\rd<${7}'"'"'& %{+~=?"#.to_owned()),
        ("shell in double quotes", r#"p@ss/w\"ö\\rd<\${7}'& %{+~=?"#.to_owned()),
        ("shell with backslashes", r#"p@ss/w\"ö\\rd\<\$\{7\}\'\&\ %\{+~=\?"#.to_owned()),
        ("shell behind a dollar sign", r#"p@ss/w"ö\\rd<${7}\'& %{+~=?"#.to_owned()),
        ("shell without UTF-8", r#"p@ss/w"\303\266\\rd<${7}\'& %{+~=?"#.to_owned()),
        ("encodeURIComponent", "p%40ss%2Fw%22%C3%B6%5Crd%3C%24%7B7%7D'%26%20%25%7B%2B~%3D%3F".to_owned()),
        ("URL", "p%40ss%2Fw%22%C3%B6%5Crd%3C%24%7B7%7D%27%26%20%25%7B%2B~%3D%3F".to_owned()),
        ("URL in lower case", "p%40ss%2fw%22%c3%b6%5crd%3c%24%7b7%7d%27%26%20%25%7b%2b~%3d%3f".to_owned()),
        ("form", "p%40ss%2Fw%22%C3%B6%5Crd%3C%24%7B7%7D%27%26+%25%7B%2B%7E%3D%3F".to_owned()),
        ("user info of a URL", "p%40ss%2Fw%22%C3%B6%5Crd%3C$%7B7%7D%27&%20%25%7B+~=%3F".to_owned()),
        ("base64", STANDARD.encode(SECRET)),
        ("base64 without padding", STANDARD_NO_PAD.encode(SECRET)),
        ("base64 for URLs", URL_SAFE.encode(SECRET)),
        ("base64 for URLs without padding", URL_SAFE_NO_PAD.encode(SECRET)),
        ("hex", SECRET.bytes().map(|byte| format!("{byte:02x}")).collect()),
        ("hex in capitals", SECRET.bytes().map(|byte| format!("{byte:02X}")).collect()),
    ];
    let masker = masker(&[SECRET]);
    for (name, disguise) in disguises {
        let masked = masker.text(&format!("before {disguise} after {disguise}")).into_owned();
        assert_eq!(masked, "before *** after ***", "{name}: {disguise}");
    }
}

#[test]
fn base64_is_masked_at_any_position_of_the_secret() {
    for secret in ["hunter", "hunter2", "hunter22", TOKEN, SECRET] {
        let masker = masker(&[secret]);
        for user in ["", "u", "me", "you", "admin", "deploy"] {
            for behind in ["", "\n", "@host", "; path=/"] {
                for engine in [STANDARD, URL_SAFE_NO_PAD] {
                    let encoded = engine.encode(format!("{user}:{secret}{behind}"));
                    let masked = masker.text(&encoded).into_owned();
                    let (before, after) = masked.split_once(MASK).expect("masked");
                    // At either end, at most one remaining character has bits of the secret.
                    assert!(before.len() <= (user.len() + 1).div_ceil(3) * 4, "{masked}");
                    let bits = (encoded.len() - before.len() - after.len()) * 6;
                    assert!(bits + 12 >= secret.len() * 8, "{secret} in {encoded}: {masked}");
                }
            }
        }
    }
}

#[test]
fn folded_and_multi_line_secrets_are_masked_as_a_whole_and_line_by_line() {
    let masker = masker(&[KEY, TOKEN]);
    let (first, second) = TOKEN.split_at(17);
    let json = serde_json::to_string(KEY).unwrap();
    for (text, expected) in [
        (format!("a {KEY}b"), "a ***\n\n\n\nb"),
        (format!("a {}b", KEY.replace('\n', "\r\n")), "a ***\r\n\r\n\r\n\r\nb"),
        (format!("key: {json}"), "key: \"***\""),
        ("  x5VnYc0Lr8tWmZq1".to_owned(), "  ***"),
        (format!("[{}]", STANDARD.encode("x5VnYc0Lr8tWmZq1")), "[***]"),
        (format!("{first}\n{second}!"), "***\n!"),
        (format!("[{}]", base64_wrapped(KEY, 64)), "[***\n]"),
        (format!("[{}]", base64_wrapped(TOKEN, 19)), "[***\n\n]"),
    ] {
        assert_eq!(masker.text(&text), expected, "{text}");
    }
}

/// Folds a text like the messages of Terraform.
fn folded(text: &str, ruler: &str, columns: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().unwrap();
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= columns {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join(&format!("\n{ruler}"))
}

#[test]
fn a_secret_of_several_words_is_masked_wherever_it_is_folded() {
    let short = "correct horse battery stäple wonder";
    let long = "it was a bright cold day in april and the clocks were striking thirteen as winston smith came in, quickly";
    for secret in [short, long] {
        let masker = masker(&[secret]);
        for (ruler, columns) in [
            ("", 77),
            ("│ ", 75),
            ("\u{1b}[31m│\u{1b}[0m \u{1b}[0m", 75),
            ("\u{1b}[33m│\u{1b}[0m \u{1b}[0m", 75),
        ] {
            for before in 0..columns {
                for behind in ["", "'.", "-and-so-on"] {
                    // The prefix is one word, so that only the secret is folded.
                    let text = format!("{} '{secret}{behind}", "x".repeat(before));
                    let masked =
                        masker.text(&folded(&text, ruler, columns)).replace(['\n', 'x', ' ', '\''], "");
                    let expected = format!("{MASK}{}", behind.trim_matches('\''));
                    // A ruler before the first word is not a part of the secret.
                    let masked = masked.replacen(&ruler.replace(' ', ""), "", 1);
                    assert_eq!(masked, expected, "{before} {ruler:?} {behind}");
                }
            }
        }
        for harmless in [
            "correct horse",
            "battery stäple wonder",
            "correct horse\n│ batteries stäple wonder",
            "the clocks",
        ] {
            assert_eq!(masker.text(harmless), harmless);
        }
    }
}

#[test]
fn harmless_lookalikes_are_not_masked() {
    let look_alikes = [
        ("a prefix", &TOKEN[..20]),
        ("a suffix", &TOKEN[20..]),
        ("one letter changed", "ghp_16C7e42F292c6912E7711c838347Ae178B4a"),
        ("one letter missing", "ghp_16C7e42F292c6912E771c838347Ae178B4a"),
        ("another case", "GHP_16C7E42F292C6912E7710C838347AE178B4A"),
        ("another token", "ghp_0000000000000000000000000000000000ab"),
        ("backwards", "a4B871eA743838c0177E2196c292F24e7C61_phg"),
        ("its name", "GITHUB_TOKEN=<sensitive>"),
        ("base64 of something else", "aHVudGVyMyBpcyBub3QgaXQsIHNvcnJ5"),
        ("hex of something else", "6768705f31364337653432463239326337"),
        ("a short value", "a value of abcde here"),
        ("the user of basic auth", "Basic YWRtaW46"),
        ("a UUID", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
        ("spaced out", "ghp_16C7e42F292c 6912E7710c838347Ae178B4a"),
        ("a mask", "password = ***"),
    ];
    let masker = masker(&[TOKEN, "abcde", "      ", "\n\n\n\n\n\n\n"]);
    for (name, text) in look_alikes {
        let line = format!("before {text} after");
        assert!(matches!(masker.text(&line), std::borrow::Cow::Borrowed(_)), "{name}: {line}");
    }
}

#[test]
fn white_space_around_a_secret_is_optional() {
    let masker = masker(&["  hunter22 \n"]);
    assert_eq!(masker.text("[hunter22]"), "[***]");
    assert_eq!(masker.text("[  hunter22 ]"), "[***]");
}

#[test]
fn a_long_secret_is_masked_as_one() {
    let mut random = fastrand::Rng::with_seed(7);
    for length in [511, 512, 513, 1023, 1024, 1025, 5000, 40_000, 200_000] {
        let secret: String = std::iter::repeat_with(|| random.alphanumeric()).take(length).collect();
        let masker = masker(&[&secret]);
        assert_eq!(masker.text(&format!("a{secret}b{secret}")), "a***b***", "{length}");
        assert_eq!(masker.text(&secret[1..500]), &secret[1..500]);
        if length <= 5000 {
            assert_eq!(masker.text(&STANDARD.encode(&secret)), "***", "{length}");
        }
        let umlauts = format!("ö{}", "ü".repeat(length));
        assert_eq!(self::masker(&[&umlauts]).text(&format!("ä{umlauts}ä")), "ä***ä");
    }
}

/// A realistic key.
fn private_key(random: &mut fastrand::Rng, lines: usize) -> String {
    let line = |_| std::iter::repeat_with(|| random.alphanumeric()).take(64).collect::<String>();
    let lines: Vec<String> = (0..lines).map(line).collect();
    format!("-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----\n", lines.join("\n"))
}

#[test]
fn a_private_key_is_masked_in_the_common_forms_and_by_each_of_its_lines() {
    let key = private_key(&mut fastrand::Rng::with_seed(7), 50);
    let masker = masker(&[&key, "hunter22"]);
    assert!(!masker.is_reduced());
    assert_eq!(masker.text(&format!("a {}", key.trim())).replace('\n', ""), "a ***");
    assert_eq!(masker.text(&serde_json::to_string(key.trim()).unwrap()), "\"***\"");
    assert_eq!(masker.text(&STANDARD.encode(key.trim())), MASK);
    let form: String = url::form_urlencoded::byte_serialize(key.trim().as_bytes()).collect();
    assert_eq!(masker.text(&form), MASK);
    let inside = STANDARD.encode(format!("key={key}more"));
    assert!(masker.text(&inside).len() < 20, "{}", masker.text(&inside));
    for line in key.lines() {
        assert_eq!(masker.text(&format!("x {line} y")), "x *** y");
    }
}

#[test]
fn many_long_secrets_are_masked_in_fewer_forms_instead_of_masking_everything() {
    let mut random = fastrand::Rng::with_seed(7);
    let keys: Vec<String> = (0..200).map(|_| private_key(&mut random, 30)).collect();
    let secrets: Vec<&str> = keys.iter().map(String::as_str).chain(["hunter22"]).collect();
    let masker = masker(&secrets);
    assert!(masker.is_reduced() && masker.masks_everything().is_none());
    for key in &keys {
        assert_eq!(masker.text(key).replace('\n', ""), "***".repeat(32));
    }
    assert_eq!(masker.text(&STANDARD.encode("hunter22")), MASK);
    assert_eq!(masker.text("nothing of it"), "nothing of it");
}

#[test]
fn many_sentences_are_masked_in_all_forms_except_the_folded_ones() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut word = || std::iter::repeat_with(|| random.alphanumeric()).take(4).collect::<String>();
    let sentences: Vec<String> =
        (0..60).map(|_| (0..24).map(|_| word()).collect::<Vec<_>>().join(" ")).collect();
    let secrets: Vec<&str> = sentences.iter().map(String::as_str).collect();
    let masker = masker(&secrets);
    assert!(masker.is_reduced() && masker.masks_everything().is_none());
    for sentence in &sentences {
        let hex: String = sentence.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(masker.text(&format!("{sentence} {hex}")), "*** ***");
    }
}

#[test]
fn too_many_secrets_mask_everything() {
    let mut random = fastrand::Rng::with_seed(7);
    let secret: String = std::iter::repeat_with(|| random.alphanumeric()).take(9 << 20).collect();
    let masker = masker(&[&secret]);
    assert!(masker.masks_everything().is_some());
    assert_eq!(masker.text("any\n\ntext"), "***\n\n***");
}

#[test]
fn patterns_mask_within_a_line_and_merge_with_overlapping_secrets() {
    let settings =
        JobLogStreamSettings { redact_patterns: vec!["id=[0-9]+".into(), "x*".into()], ..Default::default() };
    let masker = Masker::new(["12345abc"], &rules(&settings));
    assert_eq!(masker.text("id=12345abc, id=7\nid=\n8 xx"), "***, ***\nid=\n8 ***");
}

#[test]
fn overlapping_secrets_are_masked_completely() {
    let masker = masker(&["abcdefgh", "fghijklm", "secret-secret"]);
    assert_eq!(masker.text("-abcdefghijklm-"), "-***-");
    assert_eq!(masker.text("secret-secret-secret"), "***");
    assert_eq!(masker.text("abcdefghabcdefgh"), "******");
}

#[test]
fn a_store_compiles_again_only_after_a_change() {
    let secret_store = SecretStore::new(rules(&JobLogStreamSettings::default()));
    secret_store.learn("own-secret");
    let (first, second) = (secret_store.masker(), secret_store.masker());
    assert!(Arc::ptr_eq(&first, &second));
    let job = secret_store.job(Some(Uuid::nil()));
    assert!(Arc::ptr_eq(&job.masker(), &job.masker()));
    let other = secret_store.job(None);
    assert!(Arc::ptr_eq(&other.masker(), &other.masker()));
    job.learn(["job-secret"]);
    job.learn(["job-secret", "abc"]);
    let third = secret_store.masker();
    assert_eq!(third.text("own-secret job-secret"), "*** ***");
    assert!(Arc::ptr_eq(&third, &secret_store.masker()));
    assert_eq!(other.masker().text("own-secret job-secret"), "*** job-secret");
    drop(job);
    assert_eq!(secret_store.masker().text("own-secret job-secret"), "*** job-secret");
    // A new handle does not have the secrets of a dropped one.
    assert_eq!(secret_store.job(Some(Uuid::nil())).masker().text("job-secret"), "job-secret");
}

#[test]
fn a_job_with_unknown_secrets_is_masked_completely() {
    let secret_store = SecretStore::new(rules(&JobLogStreamSettings::default()));
    let job = secret_store.job(Some(Uuid::nil()));
    let before = job.masker();
    job.hide_everything("lost");
    assert_eq!(before.text("hello"), "hello");
    assert_eq!(job.masker().text("hello"), MASK);
    assert_eq!(secret_store.job(Some(Uuid::max())).masker().text("hello"), "hello");
}

/// Marks every byte of every occurrence of a needle, in the simplest way.
fn model(needles: &[String], text: &[u8]) -> Vec<bool> {
    let mut masked = vec![false; text.len()];
    for needle in needles {
        for at in 0..text.len() {
            if text[at..].starts_with(needle.as_bytes()) {
                masked[at..at + needle.len()].fill(true);
            }
        }
    }
    masked
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_scanner_finds_every_needle_however_the_text_is_split(
        needles in vec("[ab]{4,12}|[abc]{2,5}", 1..6),
        text in "[abc]{0,120}|[abcdefghijk]{0,200}",
        cuts in vec(0_usize..200, 0..5),
        short in any::<bool>(),
    ) {
        let needles: Vec<String> =
            needles.into_iter().filter(|needle| short || needle.len() >= 4).collect();
        let scanner = scanner::Scanner::new(&needles.iter().cloned().collect()).unwrap();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let mut cursor = scanner.start();
        let mut masked = vec![false; text.len()];
        for piece in cuts.windows(2) {
            let (from, to) = (piece[0], piece[1]);
            cursor = scanner.scan(cursor, &text.as_bytes()[from..to], |span| {
                let start = from.checked_add_signed(span.start).unwrap();
                masked[start..from.checked_add_signed(span.end).unwrap()].fill(true);
            });
            // The depth is the full length of a needle that has started.
            let open = (0..=to)
                .find(|start| needles.iter().any(|needle| needle.starts_with(&text[*start..to])))
                .map_or(0, |start| to - start);
            prop_assert_eq!(scanner.depth(cursor), open);
        }
        prop_assert_eq!(masked, model(&needles, text.as_bytes()));
    }
}
