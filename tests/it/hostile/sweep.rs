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

/// One text of one request that becomes something nasty.
struct Row {
    method: &'static str,
    engine: &'static str,
    at: String,
    /// Which of the nasty texts.
    nasty: usize,
}

/// All of them.
fn rows(stage: &Stage) -> Vec<Row> {
    let mut rows = Vec::new();
    let pulumis = METHODS.into_iter().filter(|it| !it.starts_with("Get") && !it.starts_with("Source"));
    let all = METHODS.into_iter().map(|it| (it, "")).chain(pulumis.map(|it| (it, "pulumi")));
    for (method, engine) in all {
        let mut places = Vec::new();
        texts(&stage.payload(method), "", &mut places);
        // The rest is the same for all engines.
        places.retain(|at| engine.is_empty() || at.contains("ulumi") || at.contains("resolvedParameters"));
        for at in places.into_iter().filter(|at| at != "/jobId") {
            let nasties = 0..if engine.is_empty() { NASTIES } else { 1 };
            rows.extend(nasties.map(|nasty| Row { method, engine, at: at.clone(), nasty }));
        }
    }
    rows
}

const NASTIES: usize = 3;

fn nasty(canary: &str) -> [String; NASTIES] {
    [
        format!(
            "$(touch {canary})`touch {canary}`;touch {canary}\n'\"${{IFS}}&&touch {canary}|touch {canary}#"
        ),
        format!("--upload-pack=touch {canary}"),
        "../../../../CANARY".to_owned(),
    ]
}

/// Sends every row of this lane to a separate runner. Returns what was touched, and how many it sent.
async fn sweep(lane: usize) -> (Vec<String>, usize) {
    let mut stage = Stage::new().await;
    let nasty = nasty(&stage.canary());
    let all = rows(&stage);
    let length = all.len().div_ceil(LANES);
    let (mut bad, mut count) = (Vec::new(), 0);
    for row in all.iter().skip(lane * length).take(length) {
        let Row { method, engine, at, .. } = row;
        let nasty = &nasty[row.nasty];
        let mut payload = replaced(stage.payload(method), at, nasty);
        if !engine.is_empty() {
            payload["engine"] = (*engine).into();
        }
        // A refresh that cannot be read belongs to no job, so there is no answer.
        if *method == "SourceRefresh" && at == "/organizationId" {
            stage.push(method, &payload).await;
            stage.is_alive().await;
        } else {
            if engine.is_empty() {
                stage.plan_for(method, &payload).await;
            }
            stage.ask(method, payload).await;
        }
        count += 1;
        let damage = stage.damage();
        if !damage.is_empty() {
            bad.push(format!("{method} {at} {nasty:?}: {damage:?}"));
        }
    }
    (bad, count)
}

/// A request is mostly waiting, for the disk and for programs to start, so several runners work side by side.
const LANES: usize = 4;

#[tokio::test]
async fn no_request_runs_a_command_or_leads_outside() {
    let swept = futures::future::join_all((0..LANES).map(sweep)).await;
    let bad: Vec<_> = swept.iter().flat_map(|(bad, _)| bad).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    let count: usize = swept.iter().map(|(_, count)| count).sum();
    assert!(count > 200, "only {count} requests were made");
}
