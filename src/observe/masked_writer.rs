//! The runtime log without secrets: whatever a part of the program says, it is masked on its way out.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::panic::PanicHookInfo;

use tracing_subscriber::fmt::MakeWriter;

use crate::masking::SecretStore;

/// Makes writers that mask. Whoever formats the events hands over each of them whole.
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

    fn make_writer_for(&'a self, meta: &tracing::Metadata<'_>) -> Self::Writer {
        MaskedWriter { inner: self.inner.make_writer_for(meta), secret_store: &self.secret_store }
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

/// From now on a panic says what it has to say on stderr without secrets.
pub fn mask_panics(secret_store: SecretStore) {
    // Nobody is left to tell when stderr is gone.
    tell_panics(secret_store, |text| drop(writeln!(io::stderr(), "{text}")));
}

fn tell_panics(secret_store: SecretStore, tell: impl Fn(&str) + Send + Sync + 'static) {
    std::panic::set_hook(Box::new(move |panic| match secret_store.masker_in_a_panic() {
        Some(masker) => tell(&masker.text(&told(panic))),
        // Better than to wait for ever, or to say what might be secret.
        None => {
            let place = panic.location().map_or_else(String::new, |place| format!(" at {place}"));
            tell(&format!("a thread panicked{place}; its message cannot be masked now and is left out"));
        }
    }));
}

/// As the standard library says it.
fn told(panic: &PanicHookInfo<'_>) -> String {
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
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_panic_says_where_and_why_without_secrets() {
        let secret_store = SecretStore::new(Rules::new(&JobLogStreamSettings::default()).unwrap());
        secret_store.learn("hunter22");
        let heard = Arc::new(Mutex::new(String::new()));
        let ear = Arc::clone(&heard);
        let before = std::panic::take_hook();
        // Other tests may panic meanwhile.
        tell_panics(secret_store, move |text| ear.lock().unwrap().push_str(text));
        let panicked = std::thread::Builder::new().name("told".to_owned());
        panicked.spawn(|| panic!("cannot use hunter22 here")).unwrap().join().unwrap_err();
        std::panic::set_hook(before);
        let heard = heard.lock().unwrap();
        assert!(heard.contains("thread 'told'") && heard.contains("masked_writer.rs"), "{heard}");
        assert!(heard.contains("cannot use *** here") && !heard.contains("hunter22"), "{heard}");
    }

    #[test]
    fn an_event_is_masked_in_its_message_and_its_fields_from_the_moment_that_a_secret_is_known() {
        let secret_store = SecretStore::new(Rules::new(&JobLogStreamSettings::default()).unwrap());
        let kept = Kept::default();
        let writer = kept.clone();
        let writers = MaskedWriters::new(move || writer.clone(), secret_store.clone());
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writers);
        // With one subscriber in the process, whether it wants a message may be asked in a thread of another test, which has none.
        let _second = tracing::Dispatch::new(tracing_subscriber::registry());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::info!("before: hunter22");
            secret_store.learn("hunter22");
            let job = secret_store.job(Some(uuid::Uuid::nil()));
            job.learn(["jobs-own"]);
            tracing::info!(field = "x-hunter22-x", "message hunter22 and jobs-own\nover two lines hunter22");
        });
        let said = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        assert_eq!(said.matches("hunter22").count(), 1, "{said}");
        assert!(said.contains("message *** and ***\nover two lines *** field=\"x-***-x\""), "{said}");
    }
}
