//! Values that only the engine knows to be secret, or that are secret to the engine only.

use hawser_dev_server::{JobKind, JobState};

use super::seen;
use crate::support::world::{World, job};

const MODULE: &str = r#"
variable "token" {
  ephemeral = true
}
resource "terraform_data" "it" {
  input = { open = "open-value", hidden = sensitive("hidden-attribute") }
}
resource "terraform_data" "first" {
  input = "first-line"
  provisioner "local-exec" {
    command     = "echo provisioner $TOKEN"
    environment = { TOKEN = var.token }
  }
}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn ephemeral_values_sensitive_attributes_and_encryption_settings_are_masked() {
    let world = World::new().await;
    let url = world.repository("repo", &[("main.tf", MODULE)]);
    let runner = world.runner("one");
    let mut spec = job(JobKind::Apply, &url, "values");
    spec.parameters.insert("token".into(), "\"hidden-parameter\"".into());
    let settings = "key_provider \"pbkdf2\" \"key\" {\n  passphrase = \"hidden-phrase\"\n}";
    spec.env_vars.insert("TF_ENCRYPTION".into(), settings.into());
    let say = "echo \"say hidden-parameter\"; echo \"say $TF_ENCRYPTION\"";
    spec.hooks.init_before = Some("echo \"say $TF_ENCRYPTION\"".to_owned());
    spec.hooks.plan_before = Some(say.to_owned());
    spec.hooks.apply_before = Some(format!("{say}; echo say hidden-attribute open-value"));
    spec.hooks.output_before = Some(format!("{say}; cat terraform.tfstate"));
    let ended = world.ended(world.hub.submit(spec)).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}\n{}", runner.log());
    let seen = seen(&world, &ended, &runner);
    let lines: Vec<_> = seen.lines().filter(|line| line.contains("hidden-")).collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
    for line in ["say ***", "passphrase = \"***\"", "say *** open-value", "\"hidden\": \"***\""] {
        assert!(seen.contains(line), "no line with {line} in\n{seen}");
    }
    world.assert_no_violation();
}
