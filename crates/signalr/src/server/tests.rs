use serde_json::json;
use tokio::io::DuplexStream;
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message as Frame;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::*;
use crate::codec::handshake_request;

type Socket = WebSocketStream<DuplexStream>;
type Server = (SocketReader<Socket>, SocketWriter<Socket, Frame>);

async fn pair() -> (Socket, Server) {
    let (client, server) = tokio::io::duplex(1 << 16);
    let client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
    let server = WebSocketStream::from_raw_socket(server, Role::Server, None).await;
    let options = ServerOptions { max_message_bytes: 100, ..ServerOptions::default() };
    (client, split(server, &options))
}

async fn send(client: &mut Socket, text: &str) {
    client.send(Frame::text(text)).await.unwrap();
}

async fn receive(client: &mut Socket) -> String {
    client.next().await.unwrap().unwrap().into_text().unwrap().as_str().to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_call_is_read_and_completed_after_the_handshake() {
    let (mut client, (mut reader, mut writer)) = pair().await;
    let call =
        "{\"type\":6}\x1e{\"type\":1,\"invocationId\":\"0\",\"target\":\"Add\",\"arguments\":[1,2]}\x1e";
    send(&mut client, &(handshake_request() + call)).await;
    assert_eq!(reader.handshake().await.unwrap().check(), Ok(()));
    writer.answer_handshake(Ok(())).await.unwrap();
    match reader.next().await.unwrap() {
        ClientMessage::Invocation { invocation_id: Some(id), target, arguments } => {
            assert_eq!((target.as_str(), arguments.get()), ("Add", "[1,2]"));
            writer.complete(id, Ok(json!(3))).await.unwrap();
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(receive(&mut client).await, "{}\x1e");
    let completion: Value =
        serde_json::from_str(receive(&mut client).await.trim_end_matches('\x1e')).unwrap();
    assert_eq!(completion, json!({"type": 3, "invocationId": "0", "result": 3}));
}

#[tokio::test(start_paused = true)]
async fn a_client_without_a_handshake_or_with_another_protocol_is_refused() {
    let (_client, (mut reader, _writer)) = pair().await;
    assert!(matches!(reader.handshake().await, Err(ReadError::HandshakeTimeout)));

    let (mut client, (mut reader, mut writer)) = pair().await;
    send(&mut client, "{\"protocol\":\"messagepack\",\"version\":1}\x1e").await;
    let answer = reader.handshake().await.unwrap().check();
    assert!(answer.is_err());
    writer.answer_handshake(answer).await.unwrap();
    assert!(receive(&mut client).await.contains("error"));
}

#[tokio::test(start_paused = true)]
async fn pings_are_sent_while_the_client_is_idle_until_it_times_out() {
    let (mut client, (mut reader, mut writer)) = pair().await;
    let start = Instant::now();
    let ended = writer.keep_alive_while(reader.next()).await.unwrap();
    assert!(matches!(ended, Err(ReadError::Silence)), "{ended:?}");
    assert_eq!(start.elapsed().as_secs(), 30);
    assert_eq!(receive(&mut client).await, Message::Ping.write());
}

#[tokio::test(start_paused = true)]
async fn a_malformed_or_too_large_message_and_a_close_frame_are_errors() {
    for text in ["nonsense\x1e".to_owned(), "x".repeat(200)] {
        let (mut client, (mut reader, _writer)) = pair().await;
        send(&mut client, &text).await;
        assert!(matches!(reader.next().await, Err(ReadError::Malformed(_))), "{text}");
    }
    let (mut client, (mut reader, _writer)) = pair().await;
    client.close(None).await.unwrap();
    assert!(matches!(reader.next().await, Err(ReadError::SocketClosed)));
}

#[tokio::test(start_paused = true)]
async fn a_closed_connection_ends_with_a_close_message() {
    let (mut client, (_reader, writer)) = pair().await;
    writer.close(Some("full".to_owned()), true).await.unwrap();
    let close = Message::Close { error: Some("full".to_owned()), allow_reconnect: true };
    assert_eq!(receive(&mut client).await, close.write());
    assert!(client.next().await.unwrap().unwrap().is_close());
}

#[tokio::test]
async fn a_pending_result_is_completed_once_or_fails_with_the_connection() {
    let results = PendingResults::default();
    let answer = results.expect("a");
    assert!(results.complete("a", Ok(json!(1))));
    assert!(!results.complete("a", Ok(json!(1))));
    assert_eq!(answer.await.unwrap(), Ok(json!(1)));
    let answer = results.expect("b");
    results.clear();
    assert!(answer.await.is_err());
}
