//! Selection of a program or pipeline of a file, and specialization of its constants.

use std::path::PathBuf;

use vyre_foundation::Validated;
use vyre_foundation::fill::parse_value;
use vyre_foundation::ir::{self, Element, Literal, Program, Space, Type};
use vyre_foundation::run_line::{RunLine, assignment};
use vyre_foundation::text::parse_literal;
use vyre_runtime::pipeline::Pipeline;

use crate::error::Error;
use crate::source::{Parsed, Source};

/// A file and one of its programs.
#[derive(clap::Args)]
pub(crate) struct Selection {
    /// The .vyre or .vyreb file
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) choice: Choice,
}

/// A program of a file.
#[derive(Clone, clap::Args)]
pub(crate) struct Choice {
    /// Specialize a constant, or a uniform, which then needs no binding
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
    /// Program of a file with several; `run`, `bench` and `explain` also accept pipelines
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
}

impl Selection {
    /// Reads the selected program and specializes it.
    pub(crate) fn read(&self) -> Result<(Source, Validated<Program>), Error> {
        self.choice.program(Parsed::read(&self.file)?)
    }
}

impl Choice {
    /// The selection of a `//@ run` line.
    pub(crate) fn of(line: &RunLine) -> Choice {
        Choice { set: line.constants.clone(), program: line.program.clone() }
    }

    /// Refuses bindings of specialized uniforms.
    pub(crate) fn leaves(&self, bindings: &[(String, String)]) -> Result<(), Error> {
        let twice = bindings.iter().find(|(name, _)| self.set.iter().any(|(set, _)| set == name));
        match twice {
            Some((name, _)) => Err(vyre_foundation::Error::BoundTwice { name: name.clone() }.into()),
            None => Ok(()),
        }
    }

    /// Index of the selected pipeline: the named one, or the only one of the file. `None` if a program is selected.
    pub(crate) fn position(&self, Parsed { module, .. }: &Parsed) -> Result<Option<usize>, Error> {
        let known = |pipeline: &ir::Pipeline| pipeline.name.clone();
        match &self.program {
            None if module.pipelines.len() > 1 => {
                Err(Error::SeveralPrograms { known: module.pipelines.iter().map(known).collect() })
            }
            None => Ok((!module.pipelines.is_empty()).then_some(0)),
            Some(name) => {
                let programs = || module.programs.iter().map(Program::name);
                let position = module.pipelines.iter().position(|pipeline| pipeline.name == *name);
                if position.is_none() && !module.pipelines.is_empty() && !programs().any(|known| known == name) {
                    let known = programs().map(str::to_owned).chain(module.pipelines.iter().map(known)).collect();
                    return Err(Error::UnknownProgram { name: name.clone(), known });
                }
                Ok(position)
            }
        }
    }

    /// The pipeline at an index.
    pub(crate) fn pipeline(
        &self,
        parsed: Parsed,
        position: usize,
        budget: Option<u64>,
    ) -> Result<(Source, Pipeline), Error> {
        if !self.set.is_empty() {
            return Err(Error::Flag { flag: "--set", about: "a pipeline" });
        }
        let (source, module) = parsed.validate()?;
        let mut pipeline = Pipeline::load(&module.pipelines[position], &module.programs)?;
        if let Some(bytes) = budget {
            pipeline.budget(bytes);
        }
        Ok((source, pipeline))
    }

    /// The selected program of a file, specialized.
    pub(crate) fn program(&self, mut parsed: Parsed) -> Result<(Source, Validated<Program>), Error> {
        let position = position(&parsed, self.program.as_deref())?;
        for (at, (name, text)) in self.set.iter().enumerate() {
            if self.set[..at].iter().any(|(set, _)| set == name) {
                return Err(vyre_foundation::Error::BoundTwice { name: name.clone() }.into());
            }
            specialize(&mut parsed.module.programs[position], name, text)?;
        }
        let (source, module) = parsed.validate()?;
        Ok((source, module.programs[position].clone()))
    }
}

fn position(Parsed { source, module }: &Parsed, name: Option<&str>) -> Result<usize, Error> {
    let known = || module.programs.iter().map(|program| program.name().to_owned()).collect();
    match (name, module.programs.len()) {
        (_, 0) => Err(Error::NoPrograms { file: source.file.clone() }),
        (None, 1) => Ok(0),
        (None, _) => Err(Error::SeveralPrograms { known: known() }),
        (Some(name), _) => {
            let position = module.programs.iter().position(|program| program.name() == name);
            position.ok_or_else(|| Error::UnknownProgram { name: name.into(), known: known() })
        }
    }
}

/// Specializes a constant or uniform to the value that `text` denotes in its type.
fn specialize(program: &mut Program, name: &str, text: &str) -> Result<(), Error> {
    let constant = program.constants().values().find(|constant| constant.name == name);
    let uniform = program.memories().values().find(|memory| memory.name == name && memory.space == Space::Uniform);
    let declared = constant.map(|constant| constant.default.ty).or(uniform.map(|memory| memory.element.value_type()));
    let value = match declared {
        None => None,
        Some(Type::Bool) => parse_literal(text).ok().filter(|literal| literal.ty == Type::Bool),
        Some(ty) => Element::from_name(ty.name()).and_then(|element| parse_value(text, element).ok()),
    };
    match (declared, value) {
        (Some(ty), None) => Err(Error::ConstantValue { name: name.into(), ty, text: text.into() }),
        // For an unknown name, `specialize` reports the name, whatever the value.
        (_, value) => Ok(program.specialize(name, value.unwrap_or(Literal::zero(Type::U32)))?),
    }
}
