//! The hub's HTTP side: token endpoint, negotiation and the upgrade to a WebSocket.
//!
//! | request | refused with |
//! |---|---|
//! | `POST /connect/token` | 400 or 401 with `error` and `error_description` |
//! | `POST /runnerhub/negotiate` | 401 token, 400 query, 403 organization, 404 runner record, 409 name in use |
//! | `GET /runnerhub` | the same, and 404 for an `id` that was not negotiated |

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use hawser_signalr::server::PendingResults;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::admin;
use crate::connection::{Connection, QUEUED_MESSAGES, Reservation};
use crate::events::HubEvent;
use crate::shared::Shared;
use crate::tokens::{TokenRefusal, check_request};

/// Limits the buffer. A WebSocket frame may contain several messages.
const MAX_FRAME_BYTES: usize = 16 << 20;

pub(super) type Params = Query<HashMap<String, String>>;

pub(super) fn router(shared: &Arc<Shared>) -> Router {
    let routes = Router::new()
        .route("/connect/token", post(token))
        .route("/runnerhub/negotiate", post(negotiate))
        .route("/runnerhub", get(upgrade))
        .with_state(Arc::clone(shared));
    let routes = match &shared.options.admin_token {
        Some(token) => routes.merge(admin::router(shared, token)),
        None => routes,
    };
    routes.layer(middleware::from_fn_with_state(shared.cut.clone(), until_cut))
}

/// Ends open requests when the hub stops.
async fn until_cut(State(cut): State<CancellationToken>, request: Request, next: Next) -> Response {
    tokio::select! {
        () = cut.cancelled() => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        response = next.run(request) => response,
    }
}

async fn token(State(shared): State<Arc<Shared>>, headers: HeaderMap, form: Bytes) -> Response {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if let Err(TokenRefusal { status, code, reason }) = check_request(&shared.identity, kind, &form) {
        shared.refused(None, format!("token request: {reason}"));
        return (status, Json(json!({ "error": code, "error_description": reason }))).into_response();
    }
    let token = shared.tokens.issue();
    shared.record(HubEvent::TokenIssued);
    let lifetime = shared.tokens.lifetime().as_secs();
    Json(json!({ "access_token": token, "token_type": "Bearer", "expires_in": lifetime })).into_response()
}

async fn negotiate(State(shared): State<Arc<Shared>>, headers: HeaderMap, params: Params) -> Response {
    let instance = match check_caller(&shared, &headers, &params).await {
        Ok((instance, _)) => instance,
        Err((status, reason)) => return refused(&shared, instance_name(&params), status, &reason),
    };
    let version = match params.get("negotiateVersion").map(|text| text.parse::<u32>()) {
        None => 0,
        Some(Ok(version)) => version.min(1),
        Some(Err(_)) => {
            let reason = "negotiateVersion is not a number";
            return refused(&shared, Some(&instance), StatusCode::BAD_REQUEST, reason);
        }
    };
    let (id, token) = shared.core().registry.negotiate(&instance);
    let transports = json!([{ "transport": "WebSockets", "transferFormats": ["Text", "Binary"] }]);
    // In version 0 the ID is also the token.
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
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    params: Params,
    socket: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Response {
    let (instance, expires) = match check_caller(&shared, &headers, &params).await {
        Ok(caller) => caller,
        Err((status, reason)) => return refused(&shared, instance_name(&params), status, &reason),
    };
    let socket = match socket {
        Ok(socket) => socket.max_message_size(MAX_FRAME_BYTES).max_frame_size(MAX_FRAME_BYTES),
        Err(rejection) => {
            shared.refused(Some(&instance), rejection.to_string());
            return rejection.into_response();
        }
    };
    // Without an ID the client skips the negotiation, which SignalR allows for WebSockets.
    if let Some(id) = params.get("id")
        && !shared.core().registry.redeem(id, &instance)
    {
        return refused(&shared, Some(&instance), StatusCode::NOT_FOUND, "unknown connection id");
    }
    let (outgoing, queue) = mpsc::channel(QUEUED_MESSAGES);
    let (cut, results) = (shared.cut.child_token(), PendingResults::default());
    let reserved = shared.core().registry.reserve(&instance, outgoing.clone(), cut.clone(), results.clone());
    let Some(id) = reserved else {
        return refused(&shared, Some(&instance), StatusCode::CONFLICT, &name_in_use(&instance));
    };
    let connection = Connection {
        expires: shared.options.close_on_token_expiry.then_some(expires),
        reservation: Reservation { shared, id },
        instance,
        outgoing,
        cut,
        results,
    };
    socket.on_upgrade(move |socket| connection.serve(socket, queue))
}

fn instance_name(params: &Params) -> Option<&str> {
    params.get("runner_instance").map(String::as_str).filter(|name| !name.trim().is_empty())
}

/// Checks that a client has a valid token and a free name. Returns its name, and when its token expires.
async fn check_caller(
    shared: &Shared,
    headers: &HeaderMap,
    params: &Params,
) -> Result<(String, Instant), (StatusCode, String)> {
    let refuse = |status, reason: &str| Err((status, reason.to_owned()));
    let Some(expires) = bearer(headers, params).and_then(|token| shared.tokens.check(token)) else {
        return refuse(StatusCode::UNAUTHORIZED, "the token is missing, unknown or expired");
    };
    let id = |name: &str| params.get(name).and_then(|text| text.parse::<Uuid>().ok());
    let (Some(organization), Some(runner)) = (id("organization_id"), id("runner_id")) else {
        return refuse(
            StatusCode::BAD_REQUEST,
            "organization_id and runner_id are required and must be GUIDs",
        );
    };
    let Some(instance) = instance_name(params) else {
        return refuse(StatusCode::BAD_REQUEST, "runner_instance is required");
    };
    if organization != shared.identity.organization_id {
        return refuse(StatusCode::FORBIDDEN, &format!("the token is not for organization {organization}"));
    }
    if runner != shared.identity.runner_id {
        return refuse(StatusCode::NOT_FOUND, &format!("runner {runner} does not exist"));
    }
    // A client may reconnect before the hub notices that the old connection is lost.
    let free = shared.wait_for(|core| (!core.registry.is_taken(instance)).then_some(()));
    if timeout(shared.options.conflict_grace, free).await.is_err() {
        return refuse(StatusCode::CONFLICT, &name_in_use(instance));
    }
    Ok((instance.to_owned(), expires))
}

fn name_in_use(instance: &str) -> String {
    format!("instance {instance:?} is already connected")
}

/// The token from the header, or from the query, where browsers send it.
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
