//! From a policy to the kernel's filter language: a check of the architecture, a binary search over
//! ranges of call numbers, and the few checks of arguments. The kernel runs a filter for every call
//! number when it is loaded, so the length of the path to a verdict counts, not only the number of
//! instructions. It must refuse a policy that it cannot express: never make a weaker filter.

use std::collections::BTreeMap;
use std::fmt;

use libc::sock_filter;

use super::{ARCHITECTURE, Arguments, Policy, Rule, Test, Verdict};

/// The most instructions the kernel takes.
const INSTRUCTIONS_MAX: usize = 4096;

/// Call numbers that a kernel may have: the search should be short there.
const LIKELY_NUMBERS: u32 = 512;

/// Offsets in `struct seccomp_data`.
const AT_NUMBER: u32 = 0;
const AT_ARCHITECTURE: u32 = 4;
const AT_ARGUMENTS: u32 = 16;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const GO: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const IF_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Why a policy has no filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// A conditional jump reaches at most 255 instructions.
    #[error("the filter has a jump over {0} instructions, and 255 are possible")]
    JumpTooFar(usize),
    /// The kernel accepts at most 4,096 instructions.
    #[error("the filter has {0} instructions, and the kernel takes {INSTRUCTIONS_MAX}")]
    TooLong(usize),
}

/// A filter that can be loaded.
#[derive(Clone)]
pub struct Program {
    instructions: Vec<sock_filter>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({} instructions)", self.instructions.len())
    }
}

impl Program {
    /// The instructions for the kernel.
    pub fn instructions(&self) -> &[sock_filter] {
        &self.instructions
    }
}

/// Makes the filter of a policy.
pub fn compile(policy: &Policy) -> Result<Program, CompileError> {
    let mut assembly = Assembly::default();
    let kill = assembly.verdict(Verdict::Kill);
    let search = assembly.search(&policy.ranges(), LIKELY_NUMBERS)?;
    assembly.continue_at(search);
    let number = assembly.push(LOAD, AT_NUMBER);
    assembly.branch(IF_EQUAL, ARCHITECTURE, number, kill)?;
    assembly.push(LOAD, AT_ARCHITECTURE);
    assembly.finish()
}

/// A position in the program, counted from its end.
type Position = usize;

/// A program written from its last instruction to its first: jumps only go forward, so every
/// target exists before the jump to it does.
#[derive(Default)]
struct Assembly {
    /// In reverse order.
    reversed: Vec<sock_filter>,
    verdicts: BTreeMap<Verdict, Position>,
    arguments: BTreeMap<&'static Arguments, Position>,
}

impl Assembly {
    fn push(&mut self, code: u16, k: u32) -> Position {
        self.reversed.push(sock_filter { code, jt: 0, jf: 0, k });
        self.reversed.len() - 1
    }

    fn branch(
        &mut self,
        code: u16,
        k: u32,
        when_true: Position,
        when_false: Position,
    ) -> Result<Position, CompileError> {
        let jt = self.distance(when_true)?;
        let jf = self.distance(when_false)?;
        self.reversed.push(sock_filter { code, jt, jf, k });
        Ok(self.reversed.len() - 1)
    }

    /// How many instructions are skipped between the one that is about to be pushed and `target`.
    fn distance(&self, target: Position) -> Result<u8, CompileError> {
        let skipped = self.reversed.len() - 1 - target;
        u8::try_from(skipped).map_err(|_| CompileError::JumpTooFar(skipped))
    }

    /// Makes the next pushed instruction continue at `target`.
    fn continue_at(&mut self, target: Position) {
        let skipped = self.reversed.len() - 1 - target;
        if skipped > 0 {
            self.push(GO, skipped as u32);
        }
    }

    fn verdict(&mut self, verdict: Verdict) -> Position {
        if let Some(place) = self.verdicts.get(&verdict) {
            return *place;
        }
        let place = self.push(RETURN, answer(verdict));
        self.verdicts.insert(verdict, place);
        place
    }

    fn rule(&mut self, rule: Rule) -> Result<Position, CompileError> {
        match rule {
            Rule::Always(verdict) => Ok(self.verdict(verdict)),
            Rule::Arguments(arguments) => self.look_at(arguments),
        }
    }

    /// The clauses of a call, each continuing with the next.
    fn look_at(&mut self, arguments: &'static Arguments) -> Result<Position, CompileError> {
        if let Some(place) = self.arguments.get(arguments) {
            return Ok(*place);
        }
        let mut next = self.verdict(arguments.otherwise);
        for (index, clause) in arguments.clauses.iter().enumerate().rev() {
            let mut then = self.verdict(clause.verdict);
            if let Some((argument, test)) = clause.also {
                self.test(test, then, next)?;
                then = self.load(argument, mask(test));
            }
            let entry = self.test(clause.test, then, next)?;
            // The accumulator may still hold the argument of the clause before, if that looked at
            // one argument only.
            let before = index.checked_sub(1).map(|before| arguments.clauses[before]);
            let held =
                before.filter(|before| before.argument == clause.argument && before.also.is_none());
            let held = held.map(|before| mask(before.test));
            let wanted = mask(clause.test);
            next = match (held, wanted) {
                (Some(held), wanted) if held == wanted => entry,
                (Some(None), Some(mask)) => self.push(AND, mask),
                (_, wanted) => self.load(clause.argument, wanted),
            };
        }
        self.arguments.insert(arguments, next);
        Ok(next)
    }

    /// Loads an argument, or the bits of it that a test looks at.
    fn load(&mut self, argument: u8, mask: Option<u32>) -> Position {
        if let Some(mask) = mask {
            self.push(AND, mask);
        }
        self.push(LOAD, AT_ARGUMENTS + 8 * u32::from(argument))
    }

    /// One test of the accumulator.
    fn test(
        &mut self,
        test: Test,
        then: Position,
        next: Position,
    ) -> Result<Position, CompileError> {
        match test {
            Test::Is(number) => self.branch(IF_EQUAL, number, then, next),
            Test::Bits { mask: _, are } => self.branch(IF_EQUAL, are, then, next),
            Test::AnyOf(bits) => self.branch(IF_ANY_BIT, bits, then, next),
            Test::NoneOf(numbers) => {
                let mut otherwise = then;
                for number in numbers.iter().rev() {
                    otherwise = self.branch(IF_EQUAL, *number, next, otherwise)?;
                }
                Ok(otherwise)
            }
        }
    }

    /// A search tree over ranges up to a number, balanced by how many calls lie in them.
    fn search(&mut self, ranges: &[(u32, Rule)], end: u32) -> Result<Position, CompileError> {
        match ranges {
            [] => Ok(self.verdict(Verdict::Kill)),
            [(_, rule)] => self.rule(*rule),
            // A single call between two neighbours with the same rule: one comparison, not two.
            [(_, around), (alone, rule), (next, after)]
                if around == after && *next == alone + 1 =>
            {
                let when_alone = self.rule(*rule)?;
                let when_around = self.rule(*around)?;
                self.branch(IF_EQUAL, *alone, when_alone, when_around)
            }
            [_, _, ..] => {
                let half = ranges[0].0.midpoint(end);
                let (low, high) = ranges.split_at(nearest(ranges, half));
                let border = high[0].0;
                let when_high = self.search(high, end.max(border))?;
                let when_low = self.search(low, border)?;
                self.branch(IF_AT_LEAST, border, when_high, when_low)
            }
        }
    }

    fn finish(mut self) -> Result<Program, CompileError> {
        if self.reversed.len() > INSTRUCTIONS_MAX {
            return Err(CompileError::TooLong(self.reversed.len()));
        }
        self.reversed.reverse();
        Ok(Program { instructions: self.reversed })
    }
}

/// The mask that is applied to the accumulator for a test.
fn mask(test: Test) -> Option<u32> {
    match test {
        Test::Bits { mask, are: _ } => Some(mask),
        Test::Is(_) | Test::AnyOf(_) | Test::NoneOf(_) => None,
    }
}

/// Where to split ranges so that the border is nearest to a number, with ranges on both sides.
fn nearest(ranges: &[(u32, Rule)], number: u32) -> usize {
    (1..ranges.len()).min_by_key(|index| ranges[*index].0.abs_diff(number)).unwrap_or(1)
}

/// A verdict as the kernel's return value.
fn answer(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Allow => libc::SECCOMP_RET_ALLOW,
        Verdict::Errno(number) => libc::SECCOMP_RET_ERRNO | u32::from(number),
        Verdict::Kill => libc::SECCOMP_RET_KILL_PROCESS,
    }
}
