//! A stand-in for Pulumi Cloud, which cannot run here: the few endpoints that logging in and creating a stack need. It records
//! who asks for what. States and updates are missing, so tests end with Init.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

#[derive(Debug, Default)]
struct Kept {
    /// Each request as `METHOD PATH AUTHORIZATION`.
    requests: Vec<String>,
    stacks: BTreeSet<String>,
}

pub(crate) struct PulumiCloudStandIn {
    address: SocketAddr,
    kept: Arc<Mutex<Kept>>,
}

/// The token that every OIDC token is exchanged for.
pub(crate) const EXCHANGED_TOKEN: &str = "exchanged-token";

impl PulumiCloudStandIn {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let kept = Arc::new(Mutex::new(Kept::default()));
        let shared = Arc::clone(&kept);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                answer(stream, &shared);
            }
        });
        Self { address, kept }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.kept.lock().unwrap().requests.clone()
    }

    /// The values of the header Authorization of all requests.
    pub(crate) fn tokens(&self) -> BTreeSet<String> {
        let requests = self.requests();
        let tokens = requests.iter().filter_map(|it| it.split_once(" token "));
        tokens.map(|(_, token)| token.to_owned()).collect()
    }
}

/// A client that goes away in the middle of its request gets no answer.
fn answer(stream: TcpStream, kept: &Mutex<Kept>) {
    let mut reader = BufReader::new(stream);
    let (mut first, mut authorization, mut length) = (String::new(), String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        if first.is_empty() {
            first = line.trim_end().to_owned();
            continue;
        }
        match line.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                let Ok(parsed) = value.parse() else { return };
                length = parsed;
            }
            Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                value.clone_into(&mut authorization);
            }
            None if line.trim().is_empty() => break,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    if reader.read_exact(&mut body).is_err() {
        return;
    }
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let found = {
        let mut kept = kept.lock().unwrap();
        kept.requests.push(format!("{method} {path} {authorization}"));
        resource(method, path, &authorization, &body, &mut kept.stacks)
    };
    let (code, found) = match found {
        Ok(found) => (200, found),
        Err(code) => (code, json!({"code": code, "message": "refused by the stand-in"})),
    };
    let text = found.to_string();
    let head = format!(
        "HTTP/1.1 {code} x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        text.len()
    );
    let mut stream = reader.into_inner();
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(text.as_bytes()));
}

/// What an endpoint answers, or the code of its error.
fn resource(
    method: &str,
    path: &str,
    authorization: &str,
    body: &[u8],
    stacks: &mut BTreeSet<String>,
) -> Result<Value, u16> {
    if (method, path) == ("POST", "/api/oauth/token") {
        return Ok(
            json!({"access_token": EXCHANGED_TOKEN, "token_type": "token", "expires_in": 3600, "scope": "",
            "issued_token_type": "urn:pulumi:token-type:access_token:organization"}),
        );
    }
    if !authorization.starts_with("token ") {
        return Err(401);
    }
    match (method, path) {
        ("GET", "/api/capabilities") => Ok(json!({"capabilities": []})),
        ("GET", "/api/user") => {
            Ok(json!({"githubLogin": "ann", "organizations": [{"githubLogin": "acme", "name": "Acme"}]}))
        }
        ("GET", "/api/user/organizations/default") => Ok(json!({"gitHubLogin": "acme"})),
        ("GET", stack) if stacks.contains(stack) => {
            let names: Vec<&str> = stack.rsplit('/').collect();
            Ok(json!({"orgName": names[2], "projectName": names[1], "stackName": names[0], "version": 0}))
        }
        ("POST", project) if project.starts_with("/api/stacks/") => {
            let asked: Value = serde_json::from_slice(body).unwrap_or_default();
            stacks.insert(format!("{project}/{}", asked["stackName"].as_str().unwrap_or_default()));
            Ok(json!({}))
        }
        _ => Err(404),
    }
}
