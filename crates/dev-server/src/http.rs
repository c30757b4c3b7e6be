//! The hub's HTTP side: token endpoint, negotiation and the upgrade to a WebSocket.
//!
//! | request | refused with |
//! |---|---|
//! | `POST /connect/token` | 400 or 401 with `error` and `error_description` |
//! | `POST /runnerhub/negotiate` | 401 token, 400 query, 403 organization, 404 runner record, 409 name taken |
//! | `GET /runnerhub` | the same, and 404 for an `id` that was not negotiated |

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::connection::{Connection, Place, QUEUED_MESSAGES};
use crate::events::HubEvent;
use crate::faults::{Fault, Moment};
use crate::shared::Shared;
use crate::{admin, tokens};

/// One WebSocket frame may hold several messages; this only bounds what is buffered.
const MAX_FRAME_BYTES: usize = 16 << 20;

pub(super) type Params = Query<HashMap<String, String>>;

/// The routes; `cut` ends every connection that is made through them.
pub(super) fn router(shared: &Arc<Shared>, cut: &CancellationToken) -> Router {
    let hub = Hub { shared: Arc::clone(shared), cut: cut.clone() };
    let routes = Router::new()
        .route("/connect/token", post(token))
        .route("/runnerhub/negotiate", post(negotiate))
        .route("/runnerhub", get(upgrade))
        .with_state(hub);
    match &shared.options.admin_token {
        Some(token) => routes.merge(admin::router(shared, token)),
        None => routes,
    }
}

#[derive(Debug, Clone)]
struct Hub {
    shared: Arc<Shared>,
    cut: CancellationToken,
}

async fn token(State(Hub { shared, cut }): State<Hub>, headers: HeaderMap, form: Bytes) -> Response {
    if let Some(response) = misbehave(&shared, &cut, &Moment::Token, None).await {
        return response;
    }
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !kind.starts_with("application/x-www-form-urlencoded") {
        let reason = format!("the body is {kind:?}, not application/x-www-form-urlencoded");
        return token_refused(&shared, StatusCode::BAD_REQUEST, "invalid_request", &reason);
    }
    if let Err(refusal) = tokens::check_request(&shared.identity, &form) {
        let (code, status) = refusal.code();
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
        return token_refused(&shared, status, code, &refusal.to_string());
    }
    let token = shared.tokens.issue();
    shared.note(HubEvent::TokenIssued);
    let lifetime = shared.tokens.lifetime().as_secs();
    Json(json!({ "access_token": token, "token_type": "Bearer", "expires_in": lifetime })).into_response()
}

fn token_refused(shared: &Shared, status: StatusCode, code: &str, reason: &str) -> Response {
    shared.refused(None, format!("no token: {reason}"));
    (status, Json(json!({ "error": code, "error_description": reason }))).into_response()
}

async fn negotiate(State(Hub { shared, cut }): State<Hub>, headers: HeaderMap, params: Params) -> Response {
    let caller = match check_caller(&shared, &headers, &params).await {
        Ok(caller) => caller,
        Err(Refused { status, reason }) => return refused(&shared, named(&params), status, &reason),
    };
    if let Some(response) = misbehave(&shared, &cut, &Moment::Negotiate, Some(&caller.instance)).await {
        return response;
    }
    let version = match params.get("negotiateVersion").map(|text| text.parse::<u32>()) {
        None => 0,
        Some(Ok(version)) => version.min(1),
        Some(Err(_)) => {
            let reason = "negotiateVersion is no number";
            return refused(&shared, Some(&caller.instance), StatusCode::BAD_REQUEST, reason);
        }
    };
    let (id, token) = shared.core().registry.negotiate(&caller.instance);
    let transports = json!([{ "transport": "WebSockets", "transferFormats": ["Text", "Binary"] }]);
    // In version 0 the id was the token as well.
    Json(if version == 0 {
        json!({ "negotiateVersion": 0, "connectionId": token, "availableTransports": transports })
    } else {
        json!({
            "negotiateVersion": 1, "connectionId": id, "connectionToken": token, "availableTransports": transports,
        })
    })
    .into_response()
}

async fn upgrade(
    State(Hub { shared, cut }): State<Hub>,
    headers: HeaderMap,
    params: Params,
    socket: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Response {
    let caller = match check_caller(&shared, &headers, &params).await {
        Ok(caller) => caller,
        Err(Refused { status, reason }) => return refused(&shared, named(&params), status, &reason),
    };
    let instance = caller.instance;
    if let Some(response) = misbehave(&shared, &cut, &Moment::Upgrade, Some(&instance)).await {
        return response;
    }
    let socket = match socket {
        Ok(socket) => socket.max_message_size(MAX_FRAME_BYTES).max_frame_size(MAX_FRAME_BYTES),
        Err(rejection) => {
            shared.refused(Some(&instance), rejection.to_string());
            return rejection.into_response();
        }
    };
    // Without an id the client has skipped the negotiation, which SignalR allows for WebSockets.
    if let Some(id) = params.get("id")
        && !shared.core().registry.redeem(id, &instance)
    {
        return refused(&shared, Some(&instance), StatusCode::NOT_FOUND, "no connection with that id");
    }
    let (out, queue) = mpsc::channel(QUEUED_MESSAGES);
    let (own_cut, results) = (cut.child_token(), hawser_signalr::server::PendingResults::default());
    let place = shared.core().registry.reserve(&instance, out.clone(), own_cut.clone(), results.clone());
    let Some(id) = place else {
        return refused(&shared, Some(&instance), StatusCode::CONFLICT, &taken(&instance));
    };
    let connection = Connection {
        place: Place { shared: Arc::clone(&shared), id },
        instance,
        out,
        queue,
        cut: own_cut,
        results,
        expires: shared.options.close_on_token_expiry.then_some(caller.expires),
    };
    socket.on_upgrade(move |socket| connection.serve(socket))
}

/// Who asks, with a good token and a name that is free.
struct Caller {
    instance: String,
    expires: Instant,
}

/// Why somebody is turned away.
struct Refused {
    status: StatusCode,
    reason: String,
}

fn named(params: &Params) -> Option<&str> {
    params.get("runner_instance").map(String::as_str).filter(|name| !name.trim().is_empty())
}

async fn check_caller(shared: &Shared, headers: &HeaderMap, params: &Params) -> Result<Caller, Refused> {
    let refuse = |status, reason: &str| Err(Refused { status, reason: reason.to_owned() });
    let Some(expires) = bearer(headers, params).and_then(|token| shared.tokens.check(token)) else {
        return refuse(StatusCode::UNAUTHORIZED, "the token is missing, unknown or has run out");
    };
    let id = |name: &str| params.get(name).and_then(|text| text.parse::<Uuid>().ok());
    let (Some(organization), Some(runner)) = (id("organization_id"), id("runner_id")) else {
        return refuse(StatusCode::BAD_REQUEST, "organization_id and runner_id must be given, as GUIDs");
    };
    let Some(instance) = named(params) else {
        return refuse(StatusCode::BAD_REQUEST, "runner_instance must be given");
    };
    if organization != shared.identity.organization_id {
        return refuse(StatusCode::FORBIDDEN, &format!("the token is not for organization {organization}"));
    }
    if runner != shared.identity.runner_id {
        return refuse(StatusCode::NOT_FOUND, &format!("there is no runner {runner}"));
    }
    // A client that lost its connection may be back before the loss has been noticed here.
    let free = shared.wait_for(|core| {
        if let Some(stalled) = core.registry.by_name(instance).filter(|handle| handle.stalled) {
            stalled.cut.cancel();
        }
        (!core.registry.is_taken(instance)).then_some(())
    });
    if timeout(shared.options.conflict_grace, free).await.is_err() {
        return refuse(StatusCode::CONFLICT, &taken(instance));
    }
    Ok(Caller { instance: instance.to_owned(), expires })
}

fn taken(instance: &str) -> String {
    format!("instance {instance:?} is already connected")
}

/// The token from the header, or from the query as browsers send it.
fn bearer<'a>(headers: &'a HeaderMap, params: &'a Params) -> Option<&'a str> {
    let header = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    match header.and_then(|value| value.split_once(' ')) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Some(token.trim()),
        _ => params.get("access_token").map(String::as_str),
    }
}

fn refused(shared: &Shared, instance: Option<&str>, status: StatusCode, reason: &str) -> Response {
    shared.refused(instance, format!("{}: {reason}", status.as_u16()));
    let mut response = (status, reason.to_owned()).into_response();
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
    }
    response
}

/// Does what a rule asks for at this moment; the answer if there is to be one already.
async fn misbehave(
    shared: &Shared,
    cut: &CancellationToken,
    moment: &Moment,
    instance: Option<&str>,
) -> Option<Response> {
    match shared.fault(moment, instance)? {
        Fault::Refuse(reason) => Some((StatusCode::SERVICE_UNAVAILABLE, reason).into_response()),
        Fault::Status(status) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            Some((status, "misbehaving as told").into_response())
        }
        Fault::Delay(time) => {
            tokio::time::sleep(time).await;
            None
        }
        Fault::Send(rubbish) => Some((StatusCode::OK, rubbish.frame().0).into_response()),
        // The rest comes down to an answer that never comes.
        _ => {
            cut.cancelled().await;
            None
        }
    }
}
