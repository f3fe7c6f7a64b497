"""Two turns of one chat: the second finds the repository, the package and the variable of the first, after a sleep."""

from torpor import Sandbox


def this_chat() -> Sandbox:
    return Sandbox.session(tenant="acme", key="chat-42", template="code-interpreter")


def turn_1() -> None:
    sbx = this_chat()
    print("turn 1:", "a new sandbox" if sbx.is_new else "the sandbox of an earlier run", sbx.id)
    sbx.filesystem.write("/workspace/greeting/greeting.py", "text = 'hello from a package'\n")
    sbx.filesystem.write(
        "/workspace/greeting/setup.py",
        "import setuptools; setuptools.setup(name='greeting', py_modules=['greeting'])\n",
    )
    sbx.exec("pip install --quiet --no-index --no-build-isolation ./greeting", cwd="/workspace", check=True)
    sbx.exec(
        "git init --quiet . && git config user.name chat && git config user.email chat@example.com"
        " && git add . && git commit --quiet --allow-empty -m 'first commit'",
        cwd="/workspace/greeting",
        check=True,
    )
    sbx.run_code("variable = 41")
    # It would fall asleep by itself after five minutes without work. Asleep it costs no memory and no CPU.
    print("asleep:", sbx.hibernate().state)


def turn_2() -> None:
    sbx = this_chat()
    print("turn 2:", "a new sandbox" if sbx.is_new else "the same sandbox", sbx.id)
    print(
        "repository:", sbx.exec("git log --format=%s", cwd="/workspace/greeting", check=True).stdout.strip()
    )
    print(
        "package:",
        sbx.exec("cd / && python3 -c 'import greeting; print(greeting.text)'", check=True).stdout.strip(),
    )
    print("variable:", sbx.run_code("variable + 1").text)
    # The chat is over: only its owner ends a persistent sandbox.
    sbx.destroy()


# The second turn could as well come from another process, hours later.
turn_1()
turn_2()
