import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Locale;
import jdk.jshell.EvalException;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis;

/**
 * The program of a jshell session: runs each call's snippets in the same JShell, whose variables survive.
 *
 * <p>A call is three integers (number, bytes of code, bytes of standard input or -1) and the two texts; its end is two
 * integers, number and exit code. Number 0 says that the program is ready.
 */
public final class JshellSession {
    private static final String[] IMPORTS = {
        "java.io.*", "java.math.*", "java.net.*", "java.nio.file.*", "java.time.*", "java.util.*",
        "java.util.concurrent.*", "java.util.function.*", "java.util.regex.*", "java.util.stream.*"
    };

    private final JShell shell;

    private JshellSession(JShell shell) {
        this.shell = shell;
    }

    public static void main(String[] arguments) throws IOException {
        DataInputStream asks = new DataInputStream(new FileInputStream("/proc/self/fd/3"));
        DataOutputStream tells = new DataOutputStream(new FileOutputStream("/proc/self/fd/4"));
        try (JShell shell = JShell.builder().executionEngine("local").build()) {
            for (String name : IMPORTS) {
                shell.eval("import " + name + ";");
            }
            JshellSession session = new JshellSession(shell);
            tell(tells, 0, 0);
            while (true) {
                int number;
                try {
                    number = asks.readInt();
                } catch (EOFException closed) {
                    return;
                }
                byte[] code = new byte[asks.readInt()];
                byte[] stdin = new byte[Math.max(0, asks.readInt())];
                asks.readFully(code);
                asks.readFully(stdin);
                System.setIn(new ByteArrayInputStream(stdin));
                System.setOut(stream(FileDescriptor.out));
                System.setErr(stream(FileDescriptor.err));
                tell(tells, number, session.run(new String(code, StandardCharsets.UTF_8)));
            }
        }
    }

    private static PrintStream stream(FileDescriptor descriptor) throws IOException {
        return new PrintStream(new FileOutputStream(descriptor), true, "UTF-8");
    }

    private static void tell(DataOutputStream tells, int number, int exitCode) throws IOException {
        byte[] told = new byte[8];
        for (int place = 0; place < 4; place++) {
            told[place] = (byte) (number >>> (24 - 8 * place));
            told[4 + place] = (byte) (exitCode >>> (24 - 8 * place));
        }
        tells.write(told);
        tells.flush();
    }

    private int run(String code) {
        String rest = code;
        while (!rest.isBlank()) {
            SourceCodeAnalysis.CompletionInfo info = shell.sourceCodeAnalysis().analyzeCompletion(rest);
            if (info.completeness() == SourceCodeAnalysis.Completeness.EMPTY) {
                return 0;
            }
            boolean whole = info.completeness().isComplete();
            String source = whole && info.source() != null ? info.source() : rest;
            rest = whole ? info.remaining() : "";
            for (SnippetEvent event : shell.eval(source)) {
                if (event.causeSnippet() == null && !succeeded(event, rest.isBlank())) {
                    return 1;
                }
            }
        }
        return 0;
    }

    private boolean succeeded(SnippetEvent event, boolean last) {
        Snippet snippet = event.snippet();
        if (event.status() == Snippet.Status.REJECTED) {
            shell.diagnostics(snippet).forEach(found -> System.err.println("error: " + found.getMessage(Locale.ROOT)));
            System.err.println("in: " + snippet.source().strip());
            return false;
        }
        JShellException exception = event.exception();
        if (exception != null) {
            show(exception);
            return false;
        }
        List<String> missing = List.of();
        if (snippet instanceof jdk.jshell.DeclarationSnippet) {
            missing = new java.util.ArrayList<>();
            shell.unresolvedDependencies((jdk.jshell.DeclarationSnippet) snippet).forEach(missing::add);
        }
        if (!missing.isEmpty()) {
            System.err.println("not yet declared: " + String.join(", ", missing));
        }
        boolean isExpression = snippet.kind() == Snippet.Kind.EXPRESSION
                || snippet.subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND;
        if (last && isExpression && event.value() != null) {
            System.out.println(event.value());
        }
        return true;
    }

    private static void show(JShellException exception) {
        if (exception instanceof EvalException) {
            EvalException thrown = (EvalException) exception;
            String message = thrown.getMessage() == null ? "" : ": " + thrown.getMessage();
            System.err.println(thrown.getExceptionClassName() + message);
        } else {
            System.err.println(exception.getMessage());
        }
        for (StackTraceElement frame : exception.getStackTrace()) {
            System.err.println("\tat " + frame);
        }
        if (exception.getCause() instanceof JShellException) {
            System.err.print("Caused by: ");
            show((JShellException) exception.getCause());
        }
    }
}
