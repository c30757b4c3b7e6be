//! The ID of a job, or the start of it: the hub logs the first eight digits.

use std::str::FromStr;

use hawser_dev_server::{AdminClient, JobSnapshot};
use uuid::Uuid;

use super::{Failure, failure};
use crate::local::view;

/// How many candidates are listed.
const LISTED: usize = 10;

#[derive(Debug, Clone)]
pub(super) struct JobId {
    typed: String,
    digits: String,
}

impl FromStr for JobId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.replace('-', "").to_ascii_lowercase();
        if digits.is_empty() || digits.len() > 32 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err("not a job ID; `hawser job list` prints them");
        }
        Ok(Self { typed: text.to_owned(), digits })
    }
}

impl JobId {
    /// The only job of the hub that this can mean. Whether a job with a complete ID exists is left to the hub.
    pub(super) async fn resolve(self, client: &AdminClient) -> Result<Uuid, Failure> {
        if let Ok(id) = self.digits.parse() {
            return Ok(id);
        }
        let jobs = client.list().await.map_err(failure)?;
        let matching: Vec<&JobSnapshot> =
            jobs.iter().filter(|job| job.id.simple().to_string().starts_with(&self.digits)).collect();
        match matching.as_slice() {
            [job] => Ok(job.id),
            [] => Err(Failure::failed(format!("no job has an ID that starts with {:?}", self.typed))
                .hint(super::FORGOTTEN)),
            many => {
                let mut lines: Vec<String> =
                    many.iter().take(LISTED).map(|job| view::clean(&line(job), false)).collect();
                if many.len() > LISTED {
                    lines.push(format!("and {} more", many.len() - LISTED));
                }
                let (count, typed) = (many.len(), &self.typed);
                Err(Failure::usage(format!(
                    "the IDs of {count} jobs start with {typed:?}:\n  {}",
                    lines.join("\n  ")
                ))
                .hint("pass more of the ID"))
            }
        }
    }
}

/// A job in a list.
pub(super) fn line(job: &JobSnapshot) -> String {
    let owner = job.owner.as_deref().unwrap_or("-");
    let at = job.submitted_at.strftime("%Y-%m-%d %H:%M:%SZ");
    format!("{} {at} {:<7} {} {owner} {}", job.id, job.kind, job.module, job.state)
}
