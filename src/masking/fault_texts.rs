//! What the server is told of a failure.

use hawser_contract::Call;

use super::Masker;

impl Masker {
    /// Masks secrets in the texts of a fault. Results are data that the server needs, and stay as they are.
    #[must_use]
    pub fn call(&self, mut call: Call) -> Call {
        for text in call.fault_texts() {
            *text = self.text(text).into_owned();
        }
        call
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::masking::Rules;
    use crate::settings::model::JobLogStreamSettings;
    use hawser_contract::{
        Fault, Outcome, OutputSet, OutputValue, SourceRefresh, SourceRevisionType, SourceType, Success, Task,
    };
    use serde_json::json;
    use uuid::Uuid;

    fn masker() -> Masker {
        Masker::new(["hunter22"], &Rules::new(&JobLogStreamSettings::default()).unwrap())
    }

    #[test]
    fn both_texts_of_every_fault_are_masked() {
        let fault = Fault { message: "m hunter22".into(), details: "hunter22\nd".into(), resources: Some(3) };
        for task in Task::ALL {
            let call = masker().call(Outcome::Faulted(fault.clone()).call(task, Uuid::nil()));
            assert_eq!(call.arguments[1..3], [json!("m ***"), json!("***\nd")], "{task}");
            assert_eq!(call.arguments[0], json!(Uuid::nil()));
        }
    }

    #[test]
    fn a_refresh_keeps_the_url_that_the_server_knows_it_by() {
        let refresh = SourceRefresh {
            organization_id: Uuid::nil(),
            source_url: "https://me:hunter22@host/r".to_owned(),
            source_revision: "main".to_owned(),
            source_type: SourceType::Git,
            source_revision_type: SourceRevisionType::Default,
        };
        let call = masker().call(refresh.faulted(&Fault::new("no hunter22")));
        assert_eq!(call.arguments[0], json!(refresh.source_url));
        assert_eq!(call.arguments[4..], [json!("no ***"), json!("")]);
        let call = masker().call(refresh.completed("hunter22"));
        assert_eq!(call.arguments[4], json!("hunter22"));
    }

    #[test]
    fn results_are_told_as_they_are() {
        let output = OutputValue {
            name: "o".into(),
            sensitive: Some(true),
            kind: "string".into(),
            value: "hunter22".into(),
            from_extra_file: false,
        };
        let set = OutputSet { timestamp: 0, checksum: String::new(), outputs: vec![output] };
        let call = Outcome::Completed(Success::Outputs(Some(set))).call(Task::Output, Uuid::nil());
        assert_eq!(masker().call(call.clone()), call);
    }
}
