//! The messages of WebSocket libraries.

/// A message of a WebSocket library.
pub trait WebSocketMessage: Sized {
    /// What the message contains.
    fn payload(&self) -> Payload<'_>;

    /// Creates a text message.
    fn text(text: String) -> Self;

    /// Creates a close frame.
    fn close() -> Self;
}

/// The content of a [`WebSocketMessage`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload<'a> {
    /// Text or binary data.
    Data(&'a [u8]),
    /// A ping or pong of the WebSocket.
    Control,
    /// A close frame.
    Close,
}

impl WebSocketMessage for tokio_tungstenite::tungstenite::Message {
    fn payload(&self) -> Payload<'_> {
        match self {
            Self::Text(text) => Payload::Data(text.as_bytes()),
            Self::Binary(bytes) => Payload::Data(bytes),
            Self::Close(_) => Payload::Close,
            Self::Ping(_) | Self::Pong(_) | Self::Frame(_) => Payload::Control,
        }
    }

    fn text(text: String) -> Self {
        Self::text(text)
    }

    fn close() -> Self {
        Self::Close(None)
    }
}

#[cfg(feature = "axum")]
impl WebSocketMessage for axum::extract::ws::Message {
    fn payload(&self) -> Payload<'_> {
        match self {
            Self::Text(text) => Payload::Data(text.as_bytes()),
            Self::Binary(bytes) => Payload::Data(bytes),
            Self::Close(_) => Payload::Close,
            Self::Ping(_) | Self::Pong(_) => Payload::Control,
        }
    }

    fn text(text: String) -> Self {
        Self::text(text)
    }

    fn close() -> Self {
        Self::Close(None)
    }
}
