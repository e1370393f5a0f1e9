//! Which sandboxes a list shows, in which order, a page at a time. A filter or an order that is not
//! known is refused.

use engine::NamedSession;
use serde_json::Value;

use super::errors::BlaxelError;
use super::request_body;
use web::query::Query;

const PAGE: u32 = 200;
/// What a sandbox can be in Blaxel. Here it is the first or the last.
const STATUSES: [&str; 13] = [
    "DEPLOYED",
    "ARCHIVED",
    "ARCHIVING",
    "BUILDING",
    "BUILT",
    "DEACTIVATED",
    "DEACTIVATING",
    "DELETING",
    "DEPLOYING",
    "FAILED",
    "UNARCHIVING",
    "UPLOADING",
    TERMINATED,
];
/// The status of a sandbox that has ended.
pub(super) const TERMINATED: &str = "TERMINATED";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Name,
    Created,
}

/// What a request for a list asks for.
#[derive(Debug)]
pub(super) struct ListQuery {
    limit: usize,
    after: Option<(u64, String)>,
    /// In small letters.
    text: Option<String>,
    external_id: Option<String>,
    statuses: Vec<String>,
    shows_terminated: bool,
    order: Order,
    descends: bool,
}

/// A page of a list.
pub(super) struct Page<'a> {
    /// Each with its status.
    pub(super) sandboxes: Vec<(&'a NamedSession, &'static str)>,
    /// Where the next page begins.
    pub(super) next: Option<String>,
    /// On all pages.
    pub(super) total: usize,
}

fn bad(name: &str, value: &str, what: &str) -> BlaxelError {
    BlaxelError::bad(format!("{name}: {value:?} is not {what}"))
}

impl ListQuery {
    pub(super) fn read(query: &mut Query) -> Result<Self, BlaxelError> {
        let mut given = |name: &'static str| -> Result<Option<String>, BlaxelError> {
            Ok(query.text(name)?.filter(|text| !text.is_empty()))
        };
        let sort = given("sort")?;
        let (order, descends) = match sort.as_deref() {
            None | Some("name:asc") => (Order::Name, false),
            Some("name:desc") => (Order::Name, true),
            Some("createdAt:asc") => (Order::Created, false),
            Some("createdAt:desc") => (Order::Created, true),
            Some(other) => {
                return Err(bad("sort", other, "name or createdAt with :asc or :desc"));
            }
        };
        if let Some(anchor) = given("anchor")? {
            return Err(bad("anchor", &anchor, "offered here: sort the other way round"));
        }
        let after = given("cursor")?.map(|text| cursor(&text, order)).transpose()?;
        let text = given("q")?.map(|text| text.to_lowercase());
        let external_id = given("externalId")?;
        let statuses: Vec<_> = request_body::list(query, "status")?
            .into_iter()
            .map(|status| status.to_ascii_uppercase())
            .collect();
        if let Some(other) = statuses.iter().find(|one| !STATUSES.contains(&one.as_str())) {
            return Err(bad("status", other, "a status of a sandbox"));
        }
        let shows_terminated = request_body::flag(query, "showTerminated", false)?
            || statuses.iter().any(|status| status == TERMINATED);
        let limit = match query.text("limit")? {
            None => PAGE,
            Some(text) => text.parse().map_err(|_| bad("limit", &text, "a number"))?,
        };
        let limit = limit.clamp(1, PAGE) as usize;
        Ok(Self { limit, after, text, external_id, statuses, shows_terminated, order, descends })
    }

    fn matches(&self, named: &NamedSession, status: &str) -> bool {
        if status == TERMINATED && !self.shows_terminated
            || !self.statuses.is_empty() && !self.statuses.iter().any(|one| one == status)
        {
            return false;
        }
        let metadata = &named.object["metadata"];
        if self.external_id.is_some() && self.external_id.as_deref() != external_id(named) {
            return false;
        }
        let Some(text) = &self.text else { return true };
        let mut words = vec![named.name.as_str()];
        words.extend(["displayName", "externalId"].iter().filter_map(|at| metadata[at].as_str()));
        let labels = metadata["labels"].as_object().into_iter().flatten();
        words.extend(labels.filter_map(|(_, value)| value.as_str()));
        words.iter().any(|word| word.to_lowercase().contains(text.as_str()))
    }

    fn key<'a>(&self, named: &'a NamedSession) -> (u64, &'a str) {
        match self.order {
            Order::Name => (0, &named.name),
            Order::Created => (named.created_at.0, &named.name),
        }
    }

    fn cursor(&self, named: &NamedSession) -> String {
        match self.order {
            Order::Name => named.name.clone(),
            Order::Created => format!("{}:{}", named.created_at.0, named.name),
        }
    }

    pub(super) fn page<'a>(
        &self,
        all: &'a [NamedSession],
        status: impl Fn(&NamedSession) -> &'static str,
    ) -> Page<'a> {
        let mut matching: Vec<_> = all
            .iter()
            .map(|named| (named, status(named)))
            .filter(|(named, status)| self.matches(named, status))
            .collect();
        matching.sort_by(|(one, _), (other, _)| self.key(one).cmp(&self.key(other)));
        if self.descends {
            matching.reverse();
        }
        let total = matching.len();
        let is_left = |named: &NamedSession| match &self.after {
            None => true,
            Some((at, name)) if self.descends => self.key(named) < (*at, name.as_str()),
            Some((at, name)) => self.key(named) > (*at, name.as_str()),
        };
        let mut left = matching.into_iter().filter(|(named, _)| is_left(named));
        let sandboxes: Vec<_> = left.by_ref().take(self.limit).collect();
        let next = left.next().and(sandboxes.last()).map(|(named, _)| self.cursor(named));
        Page { sandboxes, next, total }
    }
}

/// The id that its user gave to a sandbox.
pub(super) fn external_id(named: &NamedSession) -> Option<&str> {
    Value::as_str(&named.object["metadata"]["externalId"])
}

/// Where an earlier page ended.
fn cursor(text: &str, order: Order) -> Result<(u64, String), BlaxelError> {
    let parts = match order {
        Order::Name => Some((0, text)),
        Order::Created => {
            text.split_once(':').and_then(|(at, name)| Some((at.parse().ok()?, name)))
        }
    };
    let (at, name) = parts.ok_or_else(|| bad("cursor", text, "of a list in this order"))?;
    Ok((at, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use axum::extract::FromRequestParts as _;
    use model::{SessionId, Wall};
    use serde_json::json;

    use super::*;

    async fn read(query: &str) -> Result<ListQuery, BlaxelError> {
        let request = http::Request::get(format!("/sandboxes?{query}")).body(()).unwrap();
        let mut parts = request.into_parts().0;
        ListQuery::read(&mut Query::from_request_parts(&mut parts, &()).await?)
    }

    fn sandbox(name: &str, created: u64, metadata: &Value) -> NamedSession {
        NamedSession {
            name: name.to_owned(),
            session: SessionId::from_u128(1),
            object: json!({"metadata": metadata}),
            created_at: Wall(created),
            updated_at: Wall(created),
            sandboxes: Vec::new(),
        }
    }

    #[tokio::test]
    async fn sandbox_list_has_what_its_filters_say_in_the_order_that_is_asked_for() {
        let all = [
            sandbox("alpha", 3, &json!({"externalId": "42"})),
            sandbox("beta", 1, &json!({"displayName": "The ALPHABET"})),
            sandbox("gamma", 2, &json!({"labels": {"team": "blue"}, "externalId": "7"})),
            sandbox("over", 4, &json!({"externalId": "42"})),
        ];
        let status = |named: &NamedSession| {
            if named.name == "over" { TERMINATED } else { "DEPLOYED" }
        };
        for (query, expected) in [
            ("", "alpha beta gamma"),
            ("sort=name:desc", "gamma beta alpha"),
            ("sort=createdAt:asc", "beta gamma alpha"),
            ("sort=createdAt:desc&limit=2", "alpha gamma"),
            ("sort=createdAt:desc&limit=2&cursor=2:gamma", "beta"),
            ("cursor=alpha", "beta gamma"),
            ("externalId=42", "alpha"),
            ("externalId=42&showTerminated=true", "alpha over"),
            ("externalId=4", ""),
            ("q=alpha", "alpha beta"),
            ("q=Blue", "gamma"),
            ("q=nothing", ""),
            ("status=TERMINATED", "over"),
            ("status=FAILED,deployed&limit=1", "alpha"),
            ("status=FAILED", ""),
        ] {
            let page = read(query).await.unwrap();
            let page = page.page(&all, status);
            let names: Vec<_> = page.sandboxes.iter().map(|(named, _)| &*named.name).collect();
            assert_eq!(names.join(" "), expected, "{query}");
        }
        for query in
            ["sort=size", "anchor=end", "status=gone", "sort=createdAt:asc&cursor=x", "limit=all"]
        {
            assert_eq!(read(query).await.unwrap_err().status, 400, "{query}");
        }
    }
}
