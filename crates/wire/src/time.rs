//! Moments as people and their programs read them: `2026-01-02T03:04:05.678Z`. A moment outside
//! the years that RFC 3339 can name is shown as the nearest one that it can.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use model::Wall;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A moment, in milliseconds since 1970 in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = String, format = DateTime))]
pub struct Time(pub i64);

impl Time {
    /// Milliseconds from `now` until this moment; negative if it has passed.
    pub const fn ms_after(self, now: Self) -> i64 {
        self.0.saturating_sub(now.0)
    }

    /// Reads a moment; one without a time zone is in UTC.
    pub fn from_text_in_utc(text: &str) -> Option<Self> {
        if let Ok(time) = text.parse() {
            return Some(time);
        }
        let civil = text.parse::<DateTime>().ok()?;
        let zoned = civil.to_zoned(TimeZone::UTC).ok()?;
        Some(Self(zoned.timestamp().as_millisecond()))
    }

    fn timestamp(self) -> Timestamp {
        let nearest = if self.0 < 0 { Timestamp::MIN } else { Timestamp::MAX };
        Timestamp::from_millisecond(self.0).unwrap_or(nearest)
    }
}

impl From<Wall> for Time {
    fn from(wall: Wall) -> Self {
        Self(i64::try_from(wall.0).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", self.timestamp())
    }
}

impl FromStr for Time {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<Timestamp>().map(|timestamp| Self(timestamp.as_millisecond()))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(|error| de::Error::custom(format_args!("{text:?}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_milliseconds_and_a_z() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_767_323_045_678, "2026-01-02T03:04:05.678Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (i64::MAX, "9999-12-30T22:00:00.999Z"),
        ] {
            assert_eq!(Time(ms).to_string(), text);
            assert_eq!(serde_json::to_string(&Time(ms)).unwrap(), format!("\"{text}\""));
        }
        assert_eq!(Time::from(Wall(u64::MAX)), Time(i64::MAX));
    }

    #[test]
    fn times_are_read_in_any_zone_and_with_any_fraction() {
        for text in [
            "2026-01-02T03:04:05.678Z",
            "2026-01-02T04:04:05.678+01:00",
            "2026-01-02T03:04:05.678901Z",
        ] {
            assert_eq!(text.parse::<Time>().unwrap(), Time(1_767_323_045_678), "{text}");
        }
        assert!(serde_json::from_str::<Time>("\"yesterday\"").is_err());
        assert!(serde_json::from_str::<Time>("5").is_err());
    }
}
