//! The names of the adapter on phones and hosts.

/// Names that clients try, with the clients. The shim's own order differs from all of these. (L, R,
/// E, M)
pub const NAMES: [(&str, &str); 6] = [
    (
        "libneuronusdk_adapter.mtk.so",
        "LiteRT where the magic number is unknown or below 300; ExecuTorch first; the delegate",
    ),
    ("libneuronusdk_adapter.9.mtk.so", "LiteRT where the magic number is 300 to 399"),
    ("libneuronusdk_adapter.10.mtk.so", "LiteRT where the magic number is 400 or more"),
    ("libneuronusdk_adapter.so", "LiteRT"),
    ("libneuron_adapter_mgvi.so", "LiteRT; ExecuTorch second"),
    ("libneuron_adapter.so", "LiteRT last, and the last that opens wins there; ExecuTorch third; host SDKs"),
];

/// The library that returns the magic number of a firmware. (L, R)
pub const SYSTEM_UTILITY: &str = "libneuron_sys_util.mtk.so";
/// Function of that library: `int (int32_t* number)`. It returns 0 if the number is known. (L, R)
pub const MAGIC_NUMBER_FUNCTION: &str = "NeuronService_getNeuroPilotMagicNumber";
