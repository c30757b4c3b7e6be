//! Masks the faults that are reported to the server.

use hawser_contract::{Outcome, StepOutcome};

use super::Masker;

impl Masker {
    /// Masks secrets in the texts of a fault. Results are data that the server needs, so they are unchanged.
    #[must_use]
    pub fn outcome(&self, mut outcome: StepOutcome) -> StepOutcome {
        if let Outcome::Faulted(fault) = &mut outcome.outcome {
            for text in [&mut fault.message, &mut fault.details] {
                *text = self.text(text).into_owned();
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::masking::Rules;
    use crate::settings::model::JobLogStreamSettings;
    use hawser_contract::{
        Fault, OutputSet, OutputValue, SourceRefresh, SourceRevisionType, SourceType, Subject, Success, Task,
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
            let call = masker().outcome(Outcome::Faulted(fault.clone()).of(task, Uuid::nil())).call();
            assert_eq!(call.arguments[1..3], [json!("m ***"), json!("***\nd")], "{task}");
            assert_eq!(call.arguments[0], json!(Uuid::nil()));
        }
    }

    #[test]
    fn a_refresh_keeps_the_url_that_identifies_it() {
        let refresh = SourceRefresh {
            organization_id: Uuid::nil(),
            source_url: "https://me:hunter22@host/r".to_owned(),
            source_revision: "main".to_owned(),
            source_type: SourceType::Git,
            source_revision_type: SourceRevisionType::Default,
        };
        let masked = |outcome| {
            masker().outcome(StepOutcome { subject: Subject::SourceRefresh(refresh.clone()), outcome }).call()
        };
        let call = masked(Outcome::Faulted(Fault::new("no hunter22")));
        assert_eq!(call.arguments[0], json!(refresh.source_url));
        assert_eq!(call.arguments[4..], [json!("no ***"), json!("")]);
        let call = masked(Outcome::Completed(Success::Revision("hunter22".into())));
        assert_eq!(call.arguments[4], json!("hunter22"));
    }

    #[test]
    fn results_are_not_masked() {
        let output = OutputValue {
            name: "o".into(),
            sensitive: Some(true),
            kind: "string".into(),
            value: "hunter22".into(),
            from_extra_file: false,
        };
        let set = OutputSet { timestamp: 0, checksum: String::new(), outputs: vec![output] };
        let outcome = Outcome::Completed(Success::Outputs(Some(set))).of(Task::Output, Uuid::nil());
        assert_eq!(masker().outcome(outcome.clone()), outcome);
    }
}
