"""The colours of charts, on white and on dark pages, and the order in which variants take them."""

# black and the colours of Okabe and Ito (2008), which people with any colour vision tell apart, the palest ones last
LIGHT = {
    "ink": "#1f2937", "grey": "#6b7280", "frame": "#d8dce2", "paper": "#ffffff", "good": "#047857", "bad": "#b42318",
    "c1": "#0072b2", "c2": "#d55e00", "c3": "#009e73", "c4": "#cc79a7", "c5": "#56b4e9", "c6": "#e69f00",
}  # fmt: skip
DARK = {
    "ink": "#e5e7eb", "grey": "#9ca3af", "frame": "#3a4251", "paper": "#14181f", "good": "#34d399", "bad": "#f97066",
    "c1": "#4da3e0", "c2": "#f2803a", "c3": "#2cc79a", "c4": "#e59ac5", "c5": "#8fd0f5", "c6": "#f0b440",
}  # fmt: skip
SERIES = ("ink", "c1", "c2", "c3", "c4", "c5", "c6")  # the baseline is black
