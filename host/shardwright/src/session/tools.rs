//! Tools of a session: what replies may call, and what they must call.

use shardwright_runtime::GenerationOptions;
use shardwright_text::{CallFormat, CallRules, RenderOptions, ToolChoice, ToolDefinition};

use super::Session;
use crate::turns::Turn;
use crate::{Error, ErrorKind, Result};

impl Session {
    /// Sets the tools that replies may call. The chat template describes them to the model, and
    /// calls in replies are delivered as [`GenerationEvent::ToolCall`]. No tools disables calls.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the chat template does not describe tools, or writes calls in
    /// an unknown format. [`ErrorKind::Argument`] for too many tools, or two with the same name.
    ///
    /// [`GenerationEvent::ToolCall`]: crate::GenerationEvent::ToolCall
    pub fn set_tools(&mut self, tools: Vec<ToolDefinition>) -> Result<()> {
        ToolDefinition::check_list(&tools)?;
        if !tools.is_empty() {
            self.call_format = Some(self.text.call_format()?);
        }
        self.tools = tools;
        Ok(())
    }

    /// Returns the tools that replies may call.
    pub fn tools(&self) -> &[ToolDefinition] {
        &self.tools
    }

    /// Sets which tools replies may or must call. The default is [`ToolChoice::Auto`]. A choice
    /// that the tools do not allow is an error of the next reply.
    ///
    /// [`ToolChoice::Required`] and [`ToolChoice::Named`] need the feature `constraint`. A grammar
    /// then enforces calls whose arguments match the tool's schema.
    pub fn set_tool_choice(&mut self, choice: ToolChoice) {
        self.tool_choice = choice;
    }

    /// Returns which tools replies may or must call.
    pub fn tool_choice(&self) -> &ToolChoice {
        &self.tool_choice
    }

    /// Returns the options for the chat template, with the tools that it describes.
    pub(super) fn render_options(&self) -> RenderOptions {
        let mut options = self.template.clone();
        if self.offers_tools() {
            options.tools = Some(ToolDefinition::template_value(&self.tools));
        }
        options
    }

    fn offers_tools(&self) -> bool {
        !self.tools.is_empty() && self.tool_choice != ToolChoice::None
    }

    /// Adds the rules for calls to the options of a reply in the conversation.
    pub(super) fn expect_calls(&self, options: &mut GenerationOptions) -> Result<()> {
        self.tool_choice.check(&self.tools)?;
        let Some(format) = self.call_format.filter(|_| self.offers_tools()) else { return Ok(()) };
        if self.tool_choice.is_forced() && options.show_special {
            return Err(Error::new(
                ErrorKind::Argument,
                "calls are not recognised while special tokens are shown",
            )
            .with_help("unset `show_special`, or let the model choose whether it calls tools"));
        }
        let ids = self.turns.iter().flat_map(Turn::calls).map(|call| call.id.clone());
        options.calls = Some(CallRules::new(format, &self.tools).with_used_ids(ids));
        if self.tool_choice.is_forced() {
            self.force_call(format, options)?;
        }
        Ok(())
    }

    /// Restricts the reply to calls that match the choice.
    #[cfg(feature = "constraint")]
    fn force_call(&self, format: CallFormat, options: &mut GenerationOptions) -> Result<()> {
        if options.constraint.is_some() {
            let what = "a reply cannot match a grammar and be a forced call";
            return Err(Error::new(ErrorKind::Argument, what)
                .with_help("remove the grammar, or let the model choose whether it calls tools"));
        }
        if let Some(grammar) = format.grammar(&self.tools, &self.tool_choice)? {
            options.constraint = Some(self.text.constraint(&crate::Grammar::lark(&grammar))?);
        }
        Ok(())
    }

    /// Reports that calls cannot be forced.
    #[cfg(not(feature = "constraint"))]
    fn force_call(&self, _: CallFormat, _: &mut GenerationOptions) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "this program was built without grammars, which force calls")
            .with_help(
                "build it with the feature `constraint`, or let the model choose whether it calls tools",
            ))
    }
}
