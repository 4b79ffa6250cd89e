package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// The man page and the completions are made of the same model that parses the
// arguments, so that they name what there is and nothing else.

type manCmd struct{}

func (*manCmd) Help() string { return `For example: gotsem man | man -l -` }

func (*manCmd) Run(a *app, ctx *kong.Context) error { return writeManual(a.stdout, ctx.Model) }

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"${enum}"`
}

func (*completionCmd) Help() string {
	return `bash: source <(gotsem completion bash); zsh: source <(gotsem completion zsh), after compinit; fish: gotsem completion fish | source.`
}

func (c *completionCmd) Run(a *app, ctx *kong.Context) error {
	var b strings.Builder
	switch c.Shell {
	case "fish":
		completeFish(&b, ctx.Model)
	case "zsh":
		completeZsh(&b, ctx.Model)
	default:
		completeBash(&b, ctx.Model)
	}
	_, err := io.WriteString(a.stdout, b.String())
	return err
}

// visible returns the commands that are shown.
func visible(app *kong.Application) (nodes []*kong.Node) {
	for _, n := range app.Children {
		if !n.Hidden {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// flagsOf returns the flags of a node that are shown.
func flagsOf(n *kong.Node) (flags []*kong.Flag) {
	for _, f := range n.Flags {
		if !f.Hidden {
			flags = append(flags, f)
		}
	}
	return flags
}

// roff escapes a text for troff. Paragraphs stay, and so do lines that are indented.
func roff(text string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.ReplaceAll(line, `\`, `\e`)
		line = strings.ReplaceAll(line, "-", `\-`)
		switch {
		case line == "":
			b.WriteString(".PP\n")
		case strings.HasPrefix(line, "  "):
			b.WriteString(".br\n" + `\&` + line + "\n")
		default:
			b.WriteString(`\&` + line + "\n")
		}
	}
	return b.String()
}

func writeManual(w io.Writer, app *kong.Application) error {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH GOTSEM 1\n.SH NAME\ngotsem \\- hold a slot of a distributed semaphore while a command runs\n.SH SYNOPSIS\n.B gotsem\n.I command\n[arguments]\n.SH DESCRIPTION\n%s", roff(app.Help))
	b.WriteString(".SH COMMANDS\n")
	for _, n := range visible(app) {
		fmt.Fprintf(&b, ".SS %s", roff("gotsem "+n.Summary()))
		b.WriteString(roff(n.Help))
		if n.Detail != "" {
			b.WriteString(".PP\n" + roff(n.Detail))
		}
		for _, p := range n.Positional {
			fmt.Fprintf(&b, ".TP\n.I %s%s", roff(p.Name), roff(p.Help))
		}
		for _, f := range flagsOf(n) {
			name := f.String()
			fmt.Fprintf(&b, ".TP\n.B %s%s", roff(name), roff(f.Help))
			if len(f.Envs) > 0 {
				b.WriteString(roff("(environment: " + strings.Join(f.Envs, ", ") + ")"))
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// completeBash completes commands, and the flags of each. Behind a -- it is run's
// command, which completes as it does by itself.
func completeBash(b *strings.Builder, app *kong.Application) {
	var names []string
	b.WriteString("_gotsem() {\n\tlocal cur=${COMP_WORDS[COMP_CWORD]} i\n\tCOMPREPLY=()\n")
	b.WriteString("\tfor ((i = 1; i < COMP_CWORD; i++)); do\n\t\tif [[ ${COMP_WORDS[i]} == -- ]]; then\n")
	b.WriteString("\t\t\tif declare -F _command_offset >/dev/null; then _command_offset $((i + 1)); else COMPREPLY=($(compgen -c -f -- \"$cur\")); fi\n\t\t\treturn\n\t\tfi\n\tdone\n")
	b.WriteString("\tcase ${COMP_WORDS[1]} in\n")
	for _, n := range visible(app) {
		names = append(names, n.Name)
		words := []string{"--help"}
		for _, f := range flagsOf(n) {
			words = append(words, "--"+f.Name)
		}
		if n.Name == "completion" {
			words = append(words, "bash", "zsh", "fish")
		}
		if n.Name == "run" {
			words = append(words, "--")
		}
		fmt.Fprintf(b, "\t%s) [[ $COMP_CWORD -gt 1 ]] && { COMPREPLY=($(compgen -W '%s' -- \"$cur\")); return; } ;;\n", n.Name, strings.Join(words, " "))
	}
	fmt.Fprintf(b, "\tesac\n\t[[ $COMP_CWORD -gt 1 ]] || COMPREPLY=($(compgen -W '%s --help --version' -- \"$cur\"))\n}\ncomplete -F _gotsem gotsem\n", strings.Join(names, " "))
}

// completeZsh completes as bash does, and says what each word is for. The text is both a
// file of zsh's fpath, which begins with #compdef, and one that can be sourced.
func completeZsh(b *strings.Builder, app *kong.Application) {
	quote := func(s string) string { // within single quotes, where : [ and ] have a meaning too
		s, _, _ = strings.Cut(s, "\n")
		return strings.NewReplacer(`'`, `'\''`, `:`, `\:`, `[`, `\[`, `]`, `\]`, `\`, `\\`).Replace(s)
	}
	b.WriteString("#compdef gotsem\n_gotsem() {\n\tlocal -a commands\n\tcommands=(\n")
	for _, n := range visible(app) {
		fmt.Fprintf(b, "\t\t'%s:%s'\n", n.Name, quote(n.Help))
	}
	b.WriteString("\t)\n\tif (( CURRENT == 2 )); then\n\t\t_describe command commands\n\t\t_arguments --help --version\n\t\treturn\n\tfi\n")
	b.WriteString("\tlocal -i i=${words[(i)--]}\n\tif (( i < CURRENT )); then\n\t\tshift $i words\n\t\t(( CURRENT -= i ))\n\t\t_normal\n\t\treturn\n\tfi\n")
	b.WriteString("\tlocal command=$words[2]\n\tshift words\n\t(( CURRENT -= 1 ))\n\tcase $command in\n")
	for _, n := range visible(app) {
		fmt.Fprintf(b, "\t%s) _arguments -s --help", n.Name)
		for _, f := range flagsOf(n) {
			value := ""
			if !f.IsBool() {
				value = ":" + quote(f.Name) + ":_default"
			}
			equals := ""
			if value != "" {
				equals = "="
			}
			fmt.Fprintf(b, " \\\n\t\t'--%s%s[%s]%s'", f.Name, equals, quote(f.Help), value)
			if f.Short != 0 {
				fmt.Fprintf(b, " \\\n\t\t'-%c[%s]%s'", f.Short, quote(f.Help), value)
			}
		}
		switch n.Name {
		case "completion":
			b.WriteString(" \\\n\t\t'1:shell:(bash zsh fish)'")
		case "run":
			b.WriteString(" \\\n\t\t'1:id:' '2:the end of the flags:(--)'")
		}
		b.WriteString(" ;;\n")
	}
	b.WriteString("\tesac\n}\nif [[ $funcstack[1] == _gotsem ]]; then _gotsem \"$@\"; else compdef _gotsem gotsem; fi\n")
}

func completeFish(b *strings.Builder, app *kong.Application) {
	quote := func(s string) string {
		s, _, _ = strings.Cut(s, "\n")
		return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
	}
	b.WriteString("complete -c gotsem -f\n")
	for _, n := range visible(app) {
		fmt.Fprintf(b, "complete -c gotsem -n __fish_use_subcommand -a %s -d %s\n", n.Name, quote(n.Help))
		for _, f := range flagsOf(n) {
			fmt.Fprintf(b, "complete -c gotsem -n '__fish_seen_subcommand_from %s' -l %s", n.Name, f.Name)
			if f.Short != 0 {
				fmt.Fprintf(b, " -s %c", f.Short)
			}
			if !f.IsBool() {
				b.WriteString(" -r")
			}
			fmt.Fprintf(b, " -d %s\n", quote(f.Help))
		}
	}
	b.WriteString("complete -c gotsem -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'\n")
}
