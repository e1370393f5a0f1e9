//! Reads a command line of the fake shell. Pure. It knows words, two kinds of quotes, `;`, `&&`,
//! `&`, `> FILE`, `>> FILE` and `>&2`, and nothing else of what a real shell knows.

/// One word, and whether variables in it are left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub text: String,
    pub literal: bool,
}

/// Where the output of a step goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Output {
    Stdout,
    Stderr,
    File { path: Word, append: bool },
}

/// When a step is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Always,
    AfterSuccess,
}

/// One command of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub words: Vec<Word>,
    pub output: Output,
    pub when: When,
    pub background: bool,
}

impl Step {
    /// A command without anything special about it.
    pub(crate) fn plain(argv: &[String]) -> Self {
        let words = argv.iter().map(|text| Word { text: text.clone(), literal: true }).collect();
        Self { words, output: Output::Stdout, when: When::Always, background: false }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(Word),
    Semicolon,
    AndAnd,
    Ampersand,
    To,
    Append,
    ToStderr,
}

/// The steps of a line, or what is wrong with it.
pub(crate) fn parse(line: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut step = Step::plain(&[]);
    let mut tokens = tokens(line)?.into_iter();
    while let Some(token) = tokens.next() {
        let next_when = match token {
            Token::Word(word) => {
                step.words.push(word);
                continue;
            }
            Token::ToStderr => {
                step.output = Output::Stderr;
                continue;
            }
            Token::To | Token::Append => {
                let Some(Token::Word(path)) = tokens.next() else {
                    return Err("a file name is missing".to_owned());
                };
                step.output = Output::File { path, append: token == Token::Append };
                continue;
            }
            Token::Semicolon => When::Always,
            Token::AndAnd => When::AfterSuccess,
            Token::Ampersand => {
                step.background = true;
                When::Always
            }
        };
        if step.words.is_empty() {
            return Err("a command is missing".to_owned());
        }
        let next = Step { when: next_when, ..Step::plain(&[]) };
        steps.push(std::mem::replace(&mut step, next));
    }
    if !step.words.is_empty() {
        steps.push(step);
    }
    Ok(steps)
}

fn tokens(line: &str) -> Result<Vec<Token>, String> {
    let mut found = Vec::new();
    let mut rest = line.chars().peekable();
    while let Some(&c) = rest.peek() {
        let token = match c {
            c if c.is_whitespace() => {
                rest.next();
                continue;
            }
            ';' => one(&mut rest, Token::Semicolon),
            '&' => {
                rest.next();
                if rest.next_if_eq(&'&').is_some() { Token::AndAnd } else { Token::Ampersand }
            }
            '>' => {
                rest.next();
                if rest.next_if_eq(&'>').is_some() {
                    Token::Append
                } else if rest.next_if_eq(&'&').is_some() {
                    rest.next_if_eq(&'2').ok_or("only >&2 is known")?;
                    Token::ToStderr
                } else {
                    Token::To
                }
            }
            _ => Token::Word(word(&mut rest)?),
        };
        found.push(token);
    }
    Ok(found)
}

fn one(rest: &mut impl Iterator<Item = char>, token: Token) -> Token {
    rest.next();
    token
}

fn word(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Word, String> {
    let mut word = Word { text: String::new(), literal: false };
    while let Some(&c) = rest.peek() {
        match c {
            c if c.is_whitespace() || matches!(c, ';' | '&' | '>') => break,
            quote @ ('\'' | '"') => {
                rest.next();
                word.literal |= quote == '\'';
                loop {
                    match rest.next() {
                        Some(c) if c == quote => break,
                        Some(c) => word.text.push(c),
                        None => return Err("a quote is not closed".to_owned()),
                    }
                }
            }
            c => {
                rest.next();
                word.text.push(c);
            }
        }
    }
    Ok(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(step: &Step) -> Vec<&str> {
        step.words.iter().map(|word| word.text.as_str()).collect()
    }

    #[test]
    fn shell_lines_are_parsed_into_steps() {
        let steps = parse("echo 'a b' >&2; cat x >> \"y z\" && sleep 9 & exit 3").unwrap();
        assert_eq!(words(&steps[0]), ["echo", "a b"]);
        assert_eq!(steps[0].output, Output::Stderr);
        assert!(steps[0].words[1].literal);
        let path = Word { text: "y z".to_owned(), literal: false };
        assert_eq!(steps[1].output, Output::File { path, append: true });
        assert_eq!((steps[2].when, steps[2].background), (When::AfterSuccess, true));
        assert_eq!((words(&steps[3]), steps[3].when), (vec!["exit", "3"], When::Always));
    }

    #[test]
    fn malformed_shell_lines_are_refused() {
        for line in ["echo 'a", "; x", "echo >", "echo >&1"] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert_eq!(parse("  ").unwrap(), []);
    }
}
