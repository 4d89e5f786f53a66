//! A model that can call tools: the scripted model with a chat template that describes them.

use crate::checkpoints::Copy;
use crate::scripted::scripted;

/// The chat template: tools first, then turns with their calls, as Gemma 4 writes them.
const TEMPLATE: &str = r#"{{- bos_token -}}
{%- for tool in tools or [] -%}{{- '<|tool>declaration:' ~ tool.function.name ~ '<tool|>' -}}{%- endfor -%}
{%- for m in messages -%}
{{- '<|turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\n' -}}
{%- for call in m.tool_calls or [] -%}
{{- '<|tool_call>call:' ~ call.function.name ~ '{' -}}
{%- for key, value in call.function.arguments.items() -%}
{{- key ~ ':<|"|>' ~ value ~ '<|"|>' -}}
{%- endfor -%}
{{- '}<tool_call|>' -}}
{%- endfor -%}
{%- if m.content is string -%}{{- m.content -}}{%- else -%}
{%- for part in m.content -%}{{- part.text -}}{%- endfor -%}
{%- endif -%}
{{- '<turn|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|turn>model\n' -}}{%- endif -%}
"#;

/// Tools as JSON: `now` has no parameters, `get_weather` has the parameter `town`, one of two.
pub const TOOLS: &str = r#"[
  {"type": "function", "function": {"name": "now", "description": "The time."}},
  {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
    "properties": {"town": {"enum": ["Bern", "Genf"]}}, "required": ["town"]}}}
]"#;

/// Makes a checkpoint that answers `Z` to each turn unless a call is forced.
pub fn calling() -> Copy {
    scripted(&[("\n", "Z")]).with("chat_template.jinja", TEMPLATE)
}
