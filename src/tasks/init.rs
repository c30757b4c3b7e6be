//! Init: keeps the module's environment variables for the tasks that follow, and lets the engine initialise.

use crate::contract::Engine;
use crate::contract::requests::Init;
use crate::engine::{flags, pulumi, terraform};
use crate::files::write_private_atomic;

use super::script::Module;
use super::shape::Shape;
use super::{Context, Prepared, TaskError};
use crate::contract::Fault;

pub(super) async fn prepare(
    context: &Context,
    shape: &Shape<'_>,
    request: &Init,
) -> Result<Prepared, TaskError> {
    let module = Module::open(context)?;
    module.workspace.save_environment(&request.resolved_env_vars)?;
    let mut work = match request.engine {
        Engine::Pulumi => {
            pulumi::check_init(request)?;
            if let Some(token) = pulumi::oidc_token(request) {
                let path = module.places.oidc_token();
                write_private_atomic(path.as_ref(), token.as_bytes())
                    .map_err(|error| Fault::new(format!("cannot write {path}: {error}")))?;
            }
            pulumi::init(request, &module.places)
        }
        _ => terraform::init(request),
    };
    work.warnings.extend(flags::unknown_flags(&request.backend_configuration.flag_lists()));
    let may_ask = request.engine != Engine::Pulumi && terraform::answers_no(request);
    module.launch(shape, &request.resolved_env_vars, may_ask, work).await
}
