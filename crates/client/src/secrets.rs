//! Secrets: stored, listed and removed. A value is sent and never read back.

use model::SecretName;
use wire::{Secret, SecretList, SecretRequest, SecretScope};

use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::query::Target;
use crate::transport::Client;

fn all(scope: SecretScope) -> Target {
    Target::new("/v1/secrets").maybe("scope", in_query(scope))
}

fn one(name: &SecretName, scope: SecretScope) -> Target {
    Target::new("/v1/secrets").part(name.as_str()).maybe("scope", in_query(scope))
}

/// The scope of the caller's own secrets need not be said.
fn in_query(scope: SecretScope) -> Option<&'static str> {
    match scope {
        SecretScope::Key => None,
        SecretScope::Node => Some(scope.as_str()),
    }
}

impl Client {
    /// Stores a secret, in place of the one of this name.
    #[boxed]
    pub async fn put_secret(
        &self,
        name: &SecretName,
        request: &SecretRequest,
        scope: SecretScope,
    ) -> Result<Secret, ClientError> {
        self.json(Call::put(one(name, scope)).json(request)?).await
    }

    /// The secrets of a scope, without their values.
    #[boxed]
    pub async fn secrets(&self, scope: SecretScope) -> Result<Vec<Secret>, ClientError> {
        let list: SecretList = self.json(Call::get(all(scope))).await?;
        Ok(list.secrets)
    }

    /// Removes a secret. Sandboxes that have its value keep it.
    #[boxed]
    pub async fn remove_secret(
        &self,
        name: &SecretName,
        scope: SecretScope,
    ) -> Result<(), ClientError> {
        self.done(Call::delete(one(name, scope))).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scope_of_secrets_is_said_only_for_the_node() {
        let name = SecretName::new("a.b").unwrap();
        assert_eq!(one(&name, SecretScope::Key).as_str(), "/v1/secrets/a.b");
        assert_eq!(one(&name, SecretScope::Node).as_str(), "/v1/secrets/a.b?scope=node");
        assert_eq!(all(SecretScope::Node).as_str(), "/v1/secrets?scope=node");
    }
}
