//! The look and the charts that the web console and the reports share.

/// Files that the console serves beside its own: names and contents.
pub const SHARED: &[(&str, &str)] = &[
    ("theme.css", include_str!("../assets/theme.css")),
    ("parts.css", include_str!("../assets/parts.css")),
    ("dom.mjs", include_str!("../assets/dom.mjs")),
    ("frame.mjs", include_str!("../assets/frame.mjs")),
    ("plot.mjs", include_str!("../assets/plot.mjs")),
];
