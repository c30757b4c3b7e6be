//! Loading never panics: any input leads to settings or to problems.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{World, complete};

/// Random text, some of it close to real settings.
fn random_text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[\\[\\]{}:,\"'/*\\\\ \na0\u{feff}~@.-]{0,40}",
        "(--)?(Runner|Server|Engine|Logging|urls|Runer)(:|__|\\.|=){0,2}(Id|Url|LogLevel|AdditionalBinaryPaths|Credentials)?(:|__|=)?[0-9a-zA-Z=]{0,3}",
        "(null|true|-?[0-9]{1,30}(\\.[0-9]+)?(e[0-9]{1,4})?|Infinity|NaN|0x[0-9a-f]{0,40})",
        Just(complete().to_string()),
    ]
}

fn random_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        random_text().prop_map(Value::from)
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((random_text(), inner), 0..4)
                .prop_map(|members| members.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn loading_never_panics(
        text in prop_oneof![random_text(), random_json().prop_map(|json| json.to_string())],
        section in random_json(),
        bytes in any::<Vec<u8>>(),
        variables in prop::collection::vec((random_text(), any::<Vec<u8>>()), 0..6),
        arguments in prop::collection::vec(random_text(), 0..6),
        environment in random_text(),
        is_complete in any::<bool>(),
    ) {
        let mut world = if is_complete { World::complete() } else { World::empty().file("appsettings.json", &text) };
        let sections = json!({ "Runner": section, "Server": { "Url": section }, "Logging": { "LogLevel": section } });
        world = world.file("appsettings.Production.json", &sections.to_string());
        std::fs::write(world.dir.path().join("appsettings.Bytes.json"), &bytes).unwrap();
        for (name, value) in variables {
            world.inputs.environment.push((name.into(), OsString::from_vec(value)));
        }
        world = world.args(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        for name in [environment.as_str(), "Bytes", "Production"] {
            world.inputs.environment.insert(0, ("DOTNET_ENVIRONMENT".into(), name.into()));
            match world.load() {
                Ok(loaded) => prop_assert!(!loaded.effective.is_empty()),
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }
}
