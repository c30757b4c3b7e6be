//! Secrets that pass.

use super::Vault;

impl Vault {
    pub fn learn_passing(&self, secret: &str) {
        self.learn(secret);
    }
}
