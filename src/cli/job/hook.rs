//! The option `--hook TASK:before=FILE`.

use std::fs;

use hawser_dev_server::Hooks;

use super::Failure;

/// `place` is a task with `:before` or `:after`.
pub(super) fn add(hooks: &mut Hooks, place: &str, file: &str) -> Result<(), Failure> {
    let hook = hook_at(hooks, &place.to_ascii_lowercase()).ok_or_else(|| {
        Failure::usage(format!("no hook is named {place:?}"))
            .hint("pass Init, Validate, Plan, PlanDestroy, Apply, Destroy, or Output with :before or :after")
    })?;
    let text = fs::read_to_string(file);
    *hook = Some(text.map_err(|error| Failure::failed(format!("failed to read {file}: {error}")))?);
    Ok(())
}

fn hook_at<'a>(hooks: &'a mut Hooks, place: &str) -> Option<&'a mut Option<String>> {
    Some(match place {
        "init:before" => &mut hooks.init_before,
        "init:after" => &mut hooks.init_after,
        "validate:before" => &mut hooks.validate_before,
        "validate:after" => &mut hooks.validate_after,
        "plan:before" => &mut hooks.plan_before,
        "plan:after" => &mut hooks.plan_after,
        "plandestroy:before" => &mut hooks.plan_destroy_before,
        "plandestroy:after" => &mut hooks.plan_destroy_after,
        "apply:before" => &mut hooks.apply_before,
        "apply:after" => &mut hooks.apply_after,
        "destroy:before" => &mut hooks.destroy_before,
        "destroy:after" => &mut hooks.destroy_after,
        "output:before" => &mut hooks.output_before,
        "output:after" => &mut hooks.output_after,
        _ => return None,
    })
}
