//! Masks secrets in the runtime log and in panic messages.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::panic::PanicHookInfo;

use tracing_subscriber::fmt::MakeWriter;

use crate::masking::SecretStore;

/// Creates writers that mask. The formatter writes each event with one call.
#[derive(Debug, Clone)]
pub struct MaskedWriters<M> {
    inner: M,
    secret_store: SecretStore,
}

impl<M> MaskedWriters<M> {
    pub fn new(inner: M, secret_store: SecretStore) -> Self {
        Self { inner, secret_store }
    }
}

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for MaskedWriters<M> {
    type Writer = MaskedWriter<'a, M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        MaskedWriter { inner: self.inner.make_writer(), secret_store: &self.secret_store }
    }
}

#[derive(Debug)]
pub struct MaskedWriter<'a, W> {
    inner: W,
    secret_store: &'a SecretStore,
}

impl<W: Write> Write for MaskedWriter<'_, W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        self.inner.write_all(self.secret_store.masker().text(&text).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Installs a panic hook that prints the message to stderr with secrets masked.
pub fn mask_panics(secret_store: SecretStore) {
    // If stderr is closed, there is nowhere else to report it.
    install_hook(secret_store, |text| drop(writeln!(io::stderr(), "{text}")));
}

fn install_hook(secret_store: SecretStore, print: impl Fn(&str) + Send + Sync + 'static) {
    std::panic::set_hook(Box::new(move |panic| match secret_store.masker_in_a_panic() {
        Some(masker) => print(&masker.text(&message(panic))),
        // Waiting for the store could deadlock.
        None => {
            let location = panic.location().map_or_else(String::new, |location| format!(" at {location}"));
            print(&format!(
                "a thread panicked{location}; the message is omitted because it cannot be masked now"
            ));
        }
    }));
}

/// Formats the message like the standard library.
fn message(panic: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let mut text = format!("thread '{}' {panic}", thread.name().unwrap_or("<unnamed>"));
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => text.push_str(&format!("\nstack backtrace:\n{backtrace}")),
        _ => text.push_str("\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace"),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::masking::Rules;
    use crate::settings::model::JobLogStreamSettings;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::layer::SubscriberExt as _;

    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_panic_message_has_its_location_and_no_secrets() {
        let secret_store = SecretStore::new(Rules::new(&JobLogStreamSettings::default()).unwrap());
        secret_store.learn("hunter22");
        let printed = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&printed);
        let before = std::panic::take_hook();
        // Other tests may panic meanwhile.
        install_hook(secret_store, move |text| sink.lock().unwrap().push_str(text));
        let thread = std::thread::Builder::new().name("panicking".to_owned());
        thread.spawn(|| panic!("cannot use hunter22 here")).unwrap().join().unwrap_err();
        std::panic::set_hook(before);
        let printed = printed.lock().unwrap();
        assert!(printed.contains("thread 'panicking'") && printed.contains("masked_writer.rs"), "{printed}");
        assert!(printed.contains("cannot use *** here") && !printed.contains("hunter22"), "{printed}");
    }

    #[test]
    fn an_event_is_masked_in_its_message_and_fields_once_the_secret_is_known() {
        let secret_store = SecretStore::new(Rules::new(&JobLogStreamSettings::default()).unwrap());
        let output = Output::default();
        let writer = output.clone();
        let writers = MaskedWriters::new(move || writer.clone(), secret_store.clone());
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writers);
        // With only one subscriber, a thread of another test, which has none, could cache that these events are disabled.
        let _second = tracing::Dispatch::new(tracing_subscriber::registry());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::info!("before: hunter22");
            secret_store.learn("hunter22");
            let job = secret_store.job(Some(uuid::Uuid::nil()));
            job.learn(["jobs-own"]);
            tracing::info!(field = "x-hunter22-x", "message hunter22 and jobs-own\nover two lines hunter22");
        });
        let log = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        assert_eq!(log.matches("hunter22").count(), 1, "{log}");
        assert!(log.contains("message *** and ***\nover two lines *** field=\"x-***-x\""), "{log}");
    }
}
