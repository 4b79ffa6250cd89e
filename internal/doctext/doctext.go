// Package doctext reads what documents show: commands, and blocks of code. Tests hold
// those against what there is.
package doctext

import (
	"os"
	"regexp"
	"strings"
)

// Command is one command of a document.
type Command struct {
	At    string   // the document
	Text  string   // the line that it stands in
	Dir   string   // where the commands before it in its line have gone to, by cd; or ""
	Words []string // without variables before it, comments and redirections
}

// Block is a block of code between fences.
type Block struct {
	Lang string
	Text string // ends with a newline
}

var (
	span = regexp.MustCompile("`([^`]+)`")
	sub  = regexp.MustCompile(`<\(([^)]*)\)`)
	env  = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*=`)
)

// Blocks returns the blocks of a document between fences, and its text without them.
func Blocks(text string) (blocks []Block, rest string) {
	var b, outside strings.Builder
	lang, within := "", false
	for line := range strings.Lines(text) {
		fence, is := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case is && !within:
			lang, within = fence, true
			b.Reset()
		case is:
			blocks = append(blocks, Block{lang, b.String()})
			within = false
		case within:
			b.WriteString(line)
		default:
			outside.WriteString(line)
		}
	}
	return blocks, outside.String()
}

// Lines returns what a document shows as code, but for blocks with a language other than
// a shell: lines that are indented by four, of blocks, and spans within a text.
func Lines(text string) []string {
	blocks, rest := Blocks(text)
	var lines []string
	for _, b := range blocks {
		if b.Lang == "" || b.Lang == "sh" || b.Lang == "console" {
			lines = append(lines, strings.Split(strings.TrimSuffix(b.Text, "\n"), "\n")...)
		}
	}
	var prose strings.Builder
	for line := range strings.Lines(rest) {
		if code, ok := strings.CutPrefix(line, "    "); ok {
			lines = append(lines, strings.TrimSpace(code))
		} else {
			prose.WriteString(line)
		}
	}
	for _, s := range span.FindAllStringSubmatch(prose.String(), -1) {
		lines = append(lines, strings.ReplaceAll(strings.Join(strings.Fields(s[1]), " "), `\|`, "|"))
	}
	return lines
}

// Commands returns the commands of the documents at paths.
func Commands(paths ...string) ([]Command, error) {
	var all []Command
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for _, line := range Lines(string(text)) {
			all = append(all, parse(path, line)...)
		}
	}
	return all, nil
}

// parse splits a line of shell into its commands.
func parse(at, line string) (all []Command) {
	for _, inner := range sub.FindAllStringSubmatch(line, -1) {
		all = append(all, parse(at, inner[1])...)
	}
	dir := ""
	for _, words := range split(sub.ReplaceAllString(line, "")) {
		for len(words) > 0 && env.MatchString(words[0]) {
			words = words[1:]
		}
		if len(words) == 0 {
			continue
		}
		all = append(all, Command{at, line, dir, words})
		if words[0] == "cd" && len(words) == 2 {
			dir = words[1]
		}
	}
	return all
}

// split is as much of a shell as documents need: quotes, comments, redirections, and
// what stands between two commands.
func split(line string) (commands [][]string) {
	var words []string
	var word strings.Builder
	begun, redirection := false, false
	end := func() {
		if begun && !redirection {
			words = append(words, word.String())
		}
		word.Reset()
		begun, redirection = false, false
	}
	quote := rune(0)
	for _, r := range line {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '\'' || r == '"':
			quote, begun = r, true
		case r == '#' && !begun:
			return append(commands, words)
		case r == ' ' || r == '\t':
			end()
		case r == '&' || r == '|' || r == ';':
			end()
			commands, words = append(commands, words), nil
		default:
			redirection = redirection || r == '>'
			word.WriteRune(r)
			begun = true
		}
	}
	end()
	return append(commands, words)
}
