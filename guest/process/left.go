package process

// StartLeft starts a shell command that nobody follows, as if whoever started it had left: it is in no one's seat, and its
// latest output is kept for those who connect later. An empty user or dir is the sandbox's own.
func (t *Table) StartLeft(command, user, dir string) error {
	request := &startRequest{
		Process: config{Cmd: bashPath, Args: []string{"-l", "-c", command}, Cwd: &dir},
		Torpor:  &extension{User: user},
	}
	if err := request.check(); err != nil {
		return err
	}
	p, err := t.launch(request, "", 0)
	if err == nil {
		p.run()
	}
	return err
}
