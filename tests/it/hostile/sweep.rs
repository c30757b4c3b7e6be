//! Every text of every request, one after the other.

use serde_json::Value;

use super::stage::Stage;

const METHODS: [&str; 11] = [
    "GetDefinitiveRevision",
    "GetModule",
    "Init",
    "Validate",
    "Input",
    "Plan",
    "PlanDestroy",
    "ApplyFromPlan",
    "DestroyFromPlan",
    "Output",
    "SourceRefresh",
];

/// The places of all texts and of all names in maps of the user's own.
fn texts(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::String(_) => found.push(at.to_owned()),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                texts(item, &format!("{at}/{index}"), found);
            }
        }
        Value::Object(members) => {
            for (name, member) in members {
                texts(member, &format!("{at}/{name}"), found);
            }
            if at.ends_with("resolvedEnvVars") || at.ends_with("resolvedParameters") {
                found.extend(members.keys().map(|name| format!("{at}/{name}#")));
            }
        }
        _ => {}
    }
}

fn replaced(mut payload: Value, at: &str, nasty: &str) -> Value {
    match at.strip_suffix('#').and_then(|at| at.rsplit_once('/')) {
        Some((map, name)) => {
            let map = payload.pointer_mut(map).unwrap().as_object_mut().unwrap();
            let value = map.remove(name).unwrap();
            map.insert(nasty.to_owned(), value);
        }
        None => *payload.pointer_mut(at).unwrap() = nasty.into(),
    }
    payload
}

#[tokio::test]
async fn no_text_of_any_request_runs_a_command_or_leads_outside() {
    let mut stage = Stage::new().await;
    let canary = stage.canary();
    let nasty = [
        format!(
            "$(touch {canary})`touch {canary}`;touch {canary}\n'\"${{IFS}}&&touch {canary}|touch {canary}#"
        ),
        format!("--upload-pack=touch {canary}"),
        "../../../../CANARY".to_owned(),
    ];
    let (mut bad, mut count) = (Vec::new(), 0);
    let pulumis = METHODS.into_iter().filter(|it| !it.starts_with("Get") && !it.starts_with("Source"));
    let all = METHODS.into_iter().map(|it| (it, "")).chain(pulumis.map(|it| (it, "pulumi")));
    for (method, engine) in all {
        let mut places = Vec::new();
        texts(&stage.payload(method), "", &mut places);
        // The rest is the same for all engines.
        places.retain(|at| engine.is_empty() || at.contains("ulumi") || at.contains("resolvedParameters"));
        for at in places.iter().filter(|at| *at != "/jobId") {
            for nasty in nasty.iter().take(if engine.is_empty() { 3 } else { 1 }) {
                let mut payload = replaced(stage.payload(method), at, nasty);
                if !engine.is_empty() {
                    payload["engine"] = engine.into();
                }
                // A refresh that cannot be read belongs to no job, so that there is nobody to answer.
                if method == "SourceRefresh" && at == "/organizationId" {
                    stage.push(method, &payload).await;
                    stage.is_alive().await;
                } else {
                    stage.ask(method, payload).await;
                }
                count += 1;
                let damage = stage.damage();
                if !damage.is_empty() {
                    bad.push(format!("{method} {at} {nasty:?}: {damage:?}"));
                }
            }
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
    assert!(count > 200, "only {count} requests were made");
}
